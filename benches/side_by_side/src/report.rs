//! The report and its charts.

use std::fs;
use std::path::Path;

use crate::run::Run;
use crate::table::Table;
use crate::works::meetings;
use crate::{Result, chart, machine};

/// Returns the text of the report.
pub(crate) fn text(run: &mut Run, tables: &[Table]) -> Result<String> {
    let mut text = "# Side by side\n\n".to_owned();
    text.push_str(
        "Written by `script/bench`. Each figure is the median of several rounds, in which the \
         contenders take turns. Ratios are computed for each round; the range in parentheses \
         has the middle half of them. `benches/peers/README.md` describes the contenders and \
         their drivers. Compare ratios of one run only.\n\n",
    );
    let mut facts = machine::lines();
    facts.push(format!("redis-server: {}", run.server.version()?));
    let sizes = &run.sizes;
    facts.push(format!("{} rounds of {} ms", sizes.rounds, sizes.round.as_millis()));
    let versions = run.versions.iter().map(|(name, version)| format!("{name} {version}"));
    facts.push(format!("contenders: {}", versions.collect::<Vec<_>>().join(", ")));
    facts.extend(run.absent.iter().cloned());
    for fact in facts {
        text.push_str(&format!("- {fact}\n"));
    }
    for table in tables.iter().filter(|table| !table.contenders.is_empty()) {
        text.push('\n');
        text.push_str(&table.markdown());
    }
    Ok(text)
}

/// Writes the report and its charts to a folder.
pub(crate) fn write(folder: &Path, text: &str, tables: &[Table]) -> Result {
    fs::create_dir_all(folder)?;
    let mut text = text.to_owned();
    let mut works: Vec<_> = tables.iter().map(|table| table.work).collect();
    works.dedup();
    for work in works {
        let of_work: Vec<&Table> = tables
            .iter()
            .filter(|table| table.work == work && !table.contenders.is_empty())
            .collect();
        let has_lines = work == meetings::WORK;
        let in_one_chart = if has_lines { of_work.len().max(1) } else { 4 };
        for (number, row) in (1..).zip(of_work.chunks(in_one_chart)) {
            let name = format!("{work}-{number}.svg");
            let draw = if has_lines { chart::lines } else { chart::bars };
            draw(&folder.join(&name), row)?;
            text.push_str(&format!("\n![{work}]({name})\n"));
        }
    }
    Ok(fs::write(folder.join("README.md"), text)?)
}
