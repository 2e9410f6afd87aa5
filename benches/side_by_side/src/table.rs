//! The figures of all rounds, and their tables.

use std::collections::HashMap;
use std::fmt::Write;

/// The figure of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Metric {
    pub(crate) name: &'static str,
    /// Decimal places.
    pub(crate) places: usize,
}

pub(crate) const fn metric(name: &'static str, places: usize) -> Metric {
    Metric { name, places }
}

/// The figures of all contenders in one setting.
#[derive(Debug)]
pub(crate) struct Table {
    /// The name of the work, for file names.
    pub(crate) work: &'static str,
    pub(crate) title: String,
    pub(crate) metrics: Vec<Metric>,
    /// The contender to whose first metric the others are compared, if any.
    pub(crate) base: Option<&'static str>,
    /// The contenders with a row.
    pub(crate) contenders: Vec<String>,
    /// The contenders that were measured, in order.
    entered: Vec<String>,
    pub(crate) notes: Vec<String>,
    figures: HashMap<(String, &'static str), Vec<f64>>,
}

/// The median of the rounds, and the quartiles.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spread {
    pub(crate) low: f64,
    pub(crate) median: f64,
    pub(crate) high: f64,
}

impl Spread {
    fn of(values: &[f64]) -> Option<Spread> {
        let mut sorted: Vec<f64> = values.iter().copied().filter(|value| !value.is_nan()).collect();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len().checked_sub(1)?;
        let quarter = last as f64 / 4.0;
        let at = |place: f64| sorted[place as usize];
        Some(Spread {
            low: at(quarter.floor()),
            median: at((2.0 * quarter).round()),
            high: at((3.0 * quarter).ceil()),
        })
    }
}

impl Table {
    pub(crate) fn new(work: &'static str, title: String, metrics: &[Metric]) -> Table {
        let (metrics, figures) = (metrics.to_vec(), HashMap::new());
        let (contenders, entered, notes) = (Vec::new(), Vec::new(), Vec::new());
        Table { work, title, metrics, base: None, contenders, entered, notes, figures }
    }

    pub(crate) fn against(mut self, base: &'static str) -> Table {
        self.base = Some(base);
        self
    }

    /// Adds a contender that is about to be measured.
    pub(crate) fn enter(&mut self, contender: &str) {
        self.entered.push(contender.to_owned());
    }

    /// Returns the measured contenders without a row.
    pub(crate) fn missing(&self) -> impl Iterator<Item = &String> {
        self.entered.iter().filter(|name| !self.contenders.contains(name))
    }

    /// Removes the row of a contender.
    pub(crate) fn leave_out(&mut self, contender: &str) {
        self.contenders.retain(|known| known != contender);
        self.figures.retain(|(known, _), _| known != contender);
    }

    /// Adds one round of a contender, with figures in the order of the metrics.
    pub(crate) fn round(&mut self, contender: &str, figures: &[f64]) {
        if !self.contenders.iter().any(|known| known == contender) {
            self.contenders.push(contender.to_owned());
            // The rows have the order of the first measurements.
            let position = |name: &String| self.entered.iter().position(|entered| entered == name);
            self.contenders.sort_by_key(position);
        }
        for (metric, figure) in self.metrics.iter().zip(figures) {
            self.figures.entry((contender.to_owned(), metric.name)).or_default().push(*figure);
        }
    }

    pub(crate) fn spread(&self, contender: &str, metric: Metric) -> Option<Spread> {
        Spread::of(self.figures.get(&(contender.to_owned(), metric.name))?)
    }

    /// Returns the ratios of the first metric to that of the base, computed for each round.
    pub(crate) fn ratio(&self, contender: &str) -> Option<Spread> {
        let lead = self.metrics.first()?.name;
        let own = self.figures.get(&(contender.to_owned(), lead))?;
        let base = self.figures.get(&(self.base?.to_owned(), lead))?;
        Spread::of(&own.iter().zip(base).map(|(own, base)| own / base).collect::<Vec<_>>())
    }

    /// Formats the table in Markdown with aligned columns.
    pub(crate) fn markdown(&self) -> String {
        let mut text = format!("### {}\n\n", self.title);
        let mut header = vec!["contender".to_owned()];
        header.extend(self.base.map(|base| format!("times {base} (half of the rounds)")));
        header.extend(self.metrics.iter().map(|metric| metric.name.to_owned()));
        let rows: Vec<Vec<String>> = self.contenders.iter().map(|name| self.row(name)).collect();
        let width = |column: usize| {
            let cells = rows.iter().chain([&header]).map(|row| row[column].chars().count());
            cells.max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..header.len()).map(width).collect();
        write_row(&mut text, &header, &widths);
        let rule: Vec<String> = (0..header.len())
            .map(|at| if at == 0 { "---".to_owned() } else { "---:".to_owned() })
            .collect();
        write_row(&mut text, &rule, &widths);
        for row in &rows {
            write_row(&mut text, row, &widths);
        }
        for note in &self.notes {
            let _ = write!(text, "\n{note}\n");
        }
        text
    }

    fn row(&self, contender: &str) -> Vec<String> {
        let mut row = vec![contender.to_owned()];
        if self.base.is_some() {
            row.push(self.ratio(contender).map_or("-".to_owned(), |ratio| {
                format!("{:.2} ({:.2} to {:.2})", ratio.median, ratio.low, ratio.high)
            }));
        }
        row.extend(self.metrics.iter().map(|metric| {
            let spread = self.spread(contender, *metric);
            spread.map_or("-".to_owned(), |spread| number(spread.median, metric.places))
        }));
        row
    }
}

fn write_row(text: &mut String, cells: &[String], widths: &[usize]) {
    for (at, (cell, width)) in cells.iter().zip(widths).enumerate() {
        let _ = match at {
            0 => write!(text, "| {cell:<width$} "),
            _ => write!(text, "| {cell:>width$} "),
        };
    }
    text.push_str("|\n");
}

/// Formats a number with commas between thousands, or `-` for NaN.
pub(crate) fn number(value: f64, places: usize) -> String {
    if value.is_infinite() {
        return "∞".to_owned();
    }
    if value.is_nan() {
        return "-".to_owned();
    }
    let plain = format!("{value:.places$}");
    let (whole, rest) = plain.split_at(plain.find('.').unwrap_or(plain.len()));
    let mut grouped = String::new();
    for (at, digit) in whole.chars().enumerate() {
        if at > 0
            && (whole.len() - at).is_multiple_of(3)
            && digit.is_ascii_digit()
            && whole.as_bytes()[at - 1] != b'-'
        {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped + rest
}
