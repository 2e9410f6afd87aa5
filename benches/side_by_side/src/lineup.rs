//! Who is measured in a work, and what becomes of those who fail.
//!
//! What comes of measuring a contender is either figures or a note: who fails is named in the
//! report with the reason, has no row in that table, and starts anew for the next. Only a
//! server that is gone ends the run.

use std::hash::{DefaultHasher, Hash, Hasher};

use crate::Result;
use crate::driver::{Driver, Recipe};
use crate::run::{Run, say};
use crate::server::Path;
use crate::sheet::Table;

/// One round of one contender, in the order of the table's metrics; `None` if its library
/// has nothing of the kind.
pub(crate) type Measured = Result<Option<Vec<f64>>>;

/// The contenders of a work, reached over one path.
pub(crate) struct Lineup {
    path: Path,
    entries: Vec<Entry>,
}

struct Entry {
    recipe: Recipe,
    /// `None` if it does not run, or not any more.
    driver: Option<Driver>,
}

impl Lineup {
    /// All contenders but those left out. None of them runs yet.
    pub(crate) fn new(run: &Run, path: Path, left_out: &[&str]) -> Lineup {
        let recipes = run.recipes.iter().filter(|recipe| !left_out.contains(&&*recipe.name));
        let entries = recipes.map(|recipe| Entry { recipe: recipe.clone(), driver: None });
        Lineup { path, entries: entries.collect() }
    }

    /// Has them take turns for so many rounds, warmed up with so many threads before.
    pub(crate) fn in_turns(
        &mut self,
        run: &mut Run,
        table: &mut Table,
        (rounds, threads): (usize, usize),
        mut one: impl FnMut(&mut Run, &mut Driver) -> Measured,
    ) -> Result {
        for entry in &mut self.entries {
            entry.make_ready(run, table, self.path, threads)?;
        }
        for round in 0..rounds {
            for at in turns(self.entries.len(), round) {
                self.entries[at].turn(run, table, &mut one)?;
            }
        }
        Ok(())
    }

    /// Measures each of them once, alone and on an empty server.
    pub(crate) fn one_by_one(
        &mut self,
        run: &mut Run,
        table: &mut Table,
        mut one: impl FnMut(&mut Run, &mut Driver) -> Measured,
    ) -> Result {
        for entry in &mut self.entries {
            say(&format!("  {}", entry.recipe.name));
            entry.make_ready(run, table, self.path, 1)?;
            entry.turn(run, table, &mut one)?;
            entry.driver = None;
            run.server.clear()?;
        }
        Ok(())
    }
}

impl Entry {
    /// Starts the driver if it does not run, and warms it up.
    fn make_ready(
        &mut self,
        run: &mut Run,
        table: &mut Table,
        path: Path,
        threads: usize,
    ) -> Result {
        table.enter(&self.recipe.name);
        if self.driver.is_none() {
            let started = run.start(&self.recipe, path).map(|driver| self.driver = Some(driver));
            run.take_in(table, &self.recipe.name, started.map(|()| None))?;
        }
        self.turn(run, table, &mut |_, driver| Run::warm_up(driver, threads).map(|()| None))
    }

    fn turn(
        &mut self,
        run: &mut Run,
        table: &mut Table,
        one: &mut dyn FnMut(&mut Run, &mut Driver) -> Measured,
    ) -> Result {
        let Some(driver) = &mut self.driver else { return Ok(()) };
        let measured = one(run, driver);
        if !run.take_in(table, &self.recipe.name, measured)? {
            self.driver = None;
            // Its locks would be in the way of others.
            run.server.clear()?;
        }
        Ok(())
    }
}

/// Another order every round, so that none always follows the same one; the same orders
/// in every run.
fn turns(contenders: usize, round: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..contenders).collect();
    order.sort_by_cached_key(|contender| {
        let mut hasher = DefaultHasher::new();
        (round, contender).hash(&mut hasher);
        hasher.finish()
    });
    order
}
