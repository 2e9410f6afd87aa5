//! [`Scale`]: from times to places, and the ticks of the axis.

use crate::timeline::spans::Window;

/// The steps of ticks, in seconds, up to a day. Shorter ones are these by powers of ten.
const STEPS: [f64; 13] =
    [1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 4.0 * 3600.0, 86400.0];

/// The shortest time that a picture shows, in seconds.
const SHORTEST: f64 = 0.001;

/// The place of each time in a picture.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    start: f64,
    length: f64,
    is_empty: bool,
    pub(crate) left: f64,
    pub(crate) width: f64,
}

impl Scale {
    pub(crate) fn new(window: Window, left: f64, width: f64) -> Scale {
        let (start, length) = (window.from, window.length().max(SHORTEST));
        Scale { start, length, is_empty: window.length() <= 0.0, left, width }
    }

    /// Returns the place of a time, within the plot.
    pub(crate) fn x(&self, time: f64) -> f64 {
        let part = ((time - self.start) / self.length).clamp(0.0, 1.0);
        self.left + part * self.width
    }

    /// Returns a time as a time since the start.
    pub(crate) fn since_start(&self, time: f64) -> f64 {
        time - self.start
    }

    /// Returns the places and texts of the ticks, at least `gap` apart.
    pub(crate) fn ticks(&self, gap: f64) -> Vec<(f64, String)> {
        if self.is_empty {
            return Vec::new();
        }
        let step = step(self.length * gap / self.width);
        let count = (self.length / step + 1e-9).floor() as u32;
        let place = |time: f64| self.left + time / self.length * self.width;
        let times = (0..=count).map(|number| f64::from(number) * step);
        times.map(|time| (place(time), tick(time, step, self.length))).collect()
    }
}

/// Returns the shortest round time that is at least `least`.
fn step(least: f64) -> f64 {
    let days = (least / 86400.0).ceil() * 86400.0;
    let small = (-6..0).flat_map(|power| [1.0, 2.0, 5.0].map(|digit| digit * 10f64.powi(power)));
    small.chain(STEPS).find(|&step| step >= least).unwrap_or(days)
}

/// Returns the text of a tick.
fn tick(time: f64, step: f64, length: f64) -> String {
    if length < 1.0 {
        let decimals = if step < 0.001 { 3 } else { 0 };
        format!("{:.decimals$} ms", time * 1000.0)
    } else if length <= 180.0 {
        let decimals = if step < 0.1 { 2 } else { usize::from(step < 1.0) };
        format!("{time:.decimals$} s")
    } else {
        clock(time)
    }
}

/// Returns minutes and seconds, and hours if there are any.
fn clock(time: f64) -> String {
    let seconds = time.round() as u64;
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match hours {
        0 => format!("{minutes}:{seconds:02}"),
        _ => format!("{hours}:{minutes:02}:{seconds:02}"),
    }
}

/// Returns a duration as text.
pub(crate) fn duration(seconds: f64) -> String {
    match seconds {
        ..0.01 => format!("{:.1} ms", seconds * 1000.0),
        ..1.0 => format!("{:.0} ms", seconds * 1000.0),
        ..180.0 => format!("{seconds:.2} s"),
        _ => clock(seconds),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(length: f64) -> Vec<String> {
        let scale = Scale::new(Window { from: 100.0, until: 100.0 + length }, 50.0, 700.0);
        scale.ticks(90.0).into_iter().map(|(_, text)| text).collect()
    }

    #[test]
    fn times_have_places_within_the_plot() {
        let scale = Scale::new(Window { from: 100.0, until: 110.0 }, 50.0, 700.0);
        let places = [90.0, 100.0, 105.0, 110.0, 111.0].map(|time| scale.x(time));
        assert_eq!(places, [50.0, 50.0, 400.0, 750.0, 750.0]);
    }

    #[test]
    fn ticks_are_round_and_have_room() {
        assert_eq!(texts(10.0), ["0 s", "2 s", "4 s", "6 s", "8 s", "10 s"]);
        assert_eq!(texts(0.02), ["0 ms", "5 ms", "10 ms", "15 ms", "20 ms"]);
        assert_eq!(
            texts(1.5),
            ["0.0 s", "0.2 s", "0.4 s", "0.6 s", "0.8 s", "1.0 s", "1.2 s", "1.4 s"]
        );
        assert_eq!(texts(600.0), ["0:00", "2:00", "4:00", "6:00", "8:00", "10:00"]);
        assert_eq!(texts(7200.0)[..3], ["0:00", "30:00", "1:00:00"]);
        assert!(texts(0.0).is_empty());
        for length in [1e-5, 0.3, 7.0, 59.0, 200.0, 4e3, 1e5, 1e6, 1e9] {
            let ticks = texts(length);
            assert!((1..=8).contains(&ticks.len()), "{length}: {ticks:?}");
        }
    }

    #[test]
    fn durations_have_units() {
        let texts = [0.00042, 0.0123, 0.5, 2.0, 179.0, 200.0].map(duration);
        assert_eq!(texts, ["0.4 ms", "12 ms", "500 ms", "2.00 s", "179.00 s", "3:20"]);
    }
}
