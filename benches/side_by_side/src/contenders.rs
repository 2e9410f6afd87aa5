//! The contenders of a work, and the treatment of failures.
//!
//! A contender that fails is named in the report with the reason, has no row in that table, and is
//! started again for the next table. Only the loss of the server ends the run.

use std::hash::{DefaultHasher, Hash, Hasher};

use crate::Result;
use crate::driver::{Driver, Recipe};
use crate::run::{Run, SEMAPHORES, say};
use crate::server::Path;
use crate::table::Table;

/// The figures of one round of a contender, in the order of the table's metrics.
///
/// `None` if the library does not support the work.
pub(crate) type Measured = Result<Option<Vec<f64>>>;

/// The contenders of a work, which reach the server over one path.
pub(crate) struct Contenders {
    path: Path,
    all: Vec<Contender>,
}

struct Contender {
    recipe: Recipe,
    /// `None` if the driver does not run.
    driver: Option<Driver>,
}

impl Contenders {
    /// Returns all locks except those in `left_out`. Starts no driver.
    pub(crate) fn new(run: &Run, path: Path, left_out: &[&str]) -> Contenders {
        Self::with(run, path, |name| !SEMAPHORES.contains(&name) && !left_out.contains(&name))
    }

    /// Returns all semaphores except those in `left_out`. Starts no driver.
    pub(crate) fn semaphores(run: &Run, path: Path, left_out: &[&str]) -> Contenders {
        Self::with(run, path, |name| SEMAPHORES.contains(&name) && !left_out.contains(&name))
    }

    fn with(run: &Run, path: Path, wanted: impl Fn(&str) -> bool) -> Contenders {
        let recipes = run.recipes.iter().filter(|recipe| wanted(&recipe.name));
        let all = recipes.map(|recipe| Contender { recipe: recipe.clone(), driver: None });
        Contenders { path, all: all.collect() }
    }

    /// Measures the contenders in turns for `rounds`, after a warm-up with `threads`.
    pub(crate) fn in_turns(
        &mut self,
        run: &mut Run,
        table: &mut Table,
        (rounds, threads): (usize, usize),
        mut one: impl FnMut(&mut Run, &mut Driver) -> Measured,
    ) -> Result {
        for contender in &mut self.all {
            contender.make_ready(run, table, self.path, threads)?;
        }
        for round in 0..rounds {
            for at in turns(self.all.len(), round) {
                self.all[at].turn(run, table, &mut one)?;
            }
        }
        Ok(())
    }

    /// Measures each contender once, alone and on an empty server.
    pub(crate) fn one_by_one(
        &mut self,
        run: &mut Run,
        table: &mut Table,
        mut one: impl FnMut(&mut Run, &mut Driver) -> Measured,
    ) -> Result {
        for contender in &mut self.all {
            say(&format!("  {}", contender.recipe.name));
            contender.make_ready(run, table, self.path, 1)?;
            contender.turn(run, table, &mut one)?;
            contender.driver = None;
            run.server.clear()?;
        }
        Ok(())
    }
}

impl Contender {
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
            match run.start(&self.recipe, path) {
                Ok(driver) => self.driver = Some(driver),
                Err(error) => {
                    run.record(table, &self.recipe.name, Err(error))?;
                }
            }
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
        if !run.record(table, &self.recipe.name, measured)? {
            self.driver = None;
            // Its locks would block other contenders.
            run.server.clear()?;
        }
        Ok(())
    }
}

/// Returns the order of the contenders in a round.
///
/// The order differs between rounds, so that no contender always follows the same one, and is the
/// same in every run.
pub(crate) fn turns(contenders: usize, round: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..contenders).collect();
    order.sort_by_cached_key(|contender| {
        let mut hasher = DefaultHasher::new();
        (round, contender).hash(&mut hasher);
        hasher.finish()
    });
    order
}
