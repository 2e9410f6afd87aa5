//! Holds and waits as bars, in the row of their thread.

use svg::node::element::{Group, Path, Rectangle};

use crate::timeline::picture::blocks::{Block, MergedSpans};
use crate::timeline::picture::elements::{px, rect, text, tooltip};
use crate::timeline::picture::head::number;
use crate::timeline::picture::layout::{Layout, Place};
use crate::timeline::picture::scale::duration;
use crate::timeline::picture::style::colour;
use crate::timeline::picture::text::{shorten, width};
use crate::timeline::rows::Row;
use crate::timeline::spans::{Activity, Span, Unseen};

/// The least width of a hold and of a wait.
const LEAST_HOLD: f64 = 2.0;
const LEAST_WAIT: f64 = 1.0;

/// The height of a wait, as a part of that of a hold.
const WAIT: f64 = 0.45;

/// The height of a minimum, as a part of that of a hold.
const KEPT: f64 = 0.2;

/// The least height of unseen holds, as a part of that of a hold.
const LEAST_RATE: f64 = 0.15;

/// The height of the strip that shows the lock of a lost hold.
const STRIP: f64 = 3.0;

/// The least width of a name in a bar.
const NAME: f64 = 28.0;

/// Draws the shapes of a picture.
pub(crate) struct Painter<'a> {
    pub(crate) layout: &'a Layout,
    pub(crate) locks: &'a [String],
}

/// The place of a bar.
#[derive(Clone, Copy)]
struct Bar {
    left: f64,
    right: f64,
    middle: f64,
    height: f64,
}

impl Bar {
    fn rect(&self, class: &str, least: f64) -> Rectangle {
        let width = (self.right - self.left).max(least);
        rect(class, self.left, self.middle - self.height / 2.0, width, self.height)
    }

    /// Returns the bar with a part of its height.
    fn thin(&self, part: f64) -> Bar {
        Bar { height: self.height * part, ..*self }
    }
}

impl Painter<'_> {
    /// Draws the lanes of a row, each with its blocks, and the noticed losses.
    pub(crate) fn row(
        &self,
        mut group: Group,
        row: &Row,
        place: &Place,
        lanes: &[Vec<Block>],
    ) -> Group {
        for (number, blocks) in lanes.iter().enumerate() {
            let (middle, height) = self.lane(place, number, lanes.len());
            for block in blocks {
                group = self.block(group, block, middle, height);
            }
        }
        let (middle, _) = self.lane(place, 0, lanes.len());
        for &at in &row.noticed {
            let text = format!("The loss was noticed at {}", self.time(at));
            group = group.add(diamond(self.layout.scale.x(at), middle).add(tooltip(&text)));
        }
        group
    }

    /// Draws the holds that no look saw, below the others. Their height is their rate.
    pub(crate) fn unseen(&self, mut group: Group, unseen: &[Unseen], place: &Place) -> Group {
        let (middle, height) = self.lane(place, 0, 1);
        for part in unseen {
            let (left, right) = (self.layout.scale.x(part.from), self.layout.scale.x(part.until));
            let share = (part.rate() / self.layout.highest_rate).max(LEAST_RATE);
            let bar = Bar { left, right, middle, height }.thin(share);
            let fill = format!("url(#merged{})", colour(part.lock));
            let shape = bar.rect("unseen", LEAST_HOLD).set("fill", fill);
            let (holds, name) = (part.holds as usize, &self.locks[part.lock]);
            let holds = number(holds, "more hold", "more holds");
            let (from, until) = (self.time(part.from), self.time(part.until));
            let text = format!("{holds} of {name} from {from} to {until}, between two looks");
            group = group.add(shape.add(tooltip(&text)));
        }
        group
    }

    /// Returns the middle of a lane and the height of its bars.
    fn lane(&self, place: &Place, number: usize, count: usize) -> (f64, f64) {
        let sizes = &self.layout.sizes;
        if count < 2 {
            return (place.middle(), sizes.bar);
        }
        let all = sizes.lane * count as f64;
        let top = place.middle() - all / 2.0 + sizes.lane * number as f64;
        (top + sizes.lane / 2.0, sizes.bar.min(sizes.lane - 3.0))
    }

    fn block(&self, group: Group, block: &Block, middle: f64, height: f64) -> Group {
        let (from, until) = block.reach();
        let (left, right) = (self.layout.scale.x(from), self.layout.scale.x(until));
        let bar = Bar { left, right, middle, height };
        match block {
            Block::Many(merged) => self.merged(group, merged, &bar),
            Block::One(span) => match span.activity {
                Activity::Wait => self.wait(group, span, &bar),
                Activity::Hold => self.hold(group, span, &bar),
                Activity::LostHold => self.lost(group, span, &bar),
                Activity::Kept => self.kept(group, span, &bar),
            },
        }
    }

    fn wait(&self, group: Group, span: &Span, bar: &Bar) -> Group {
        let fill = format!("url(#wait{})", colour(span.lock));
        let shape = bar.thin(WAIT).rect("wait", LEAST_WAIT).set("fill", fill);
        let time = duration(span.until - span.from);
        let name = &self.locks[span.lock];
        let text = format!("Waited {time} for {name}, from {}", self.time(span.from));
        group.add(shape.add(tooltip(&text)))
    }

    fn hold(&self, group: Group, span: &Span, bar: &Bar) -> Group {
        let number = colour(span.lock);
        let class = format!("lock{number}");
        let shape = bar.rect(&class, LEAST_HOLD).set("rx", 2).add(tooltip(&self.held(span)));
        let group = self.ends(group.add(shape), span, bar, &class);
        self.name(group, span, bar, &format!("on{number}"))
    }

    fn kept(&self, group: Group, span: &Span, bar: &Bar) -> Group {
        let class = format!("lock{} kept", colour(span.lock));
        let shape = bar.thin(KEPT).rect(&class, LEAST_WAIT);
        let (name, kept) = (&self.locks[span.lock], duration(span.until - span.from));
        let text = format!("A minimum kept {name} for {kept}, from {}", self.time(span.from));
        group.add(shape.add(tooltip(&text)))
    }

    fn lost(&self, group: Group, span: &Span, bar: &Bar) -> Group {
        let text = format!("{}; lost at {}", self.held(span), self.time(span.until));
        let shape = bar.rect("lost-edge", LEAST_HOLD).set("fill", "url(#lost)");
        let group = group.add(shape.add(tooltip(&text)));
        let mut group = self.ends(group, span, bar, "lost");
        if self.locks.len() > 1 {
            let class = format!("lock{}", colour(span.lock));
            let width = (bar.right - bar.left).max(LEAST_HOLD);
            let top = bar.middle + bar.height / 2.0 - STRIP;
            group = group.add(rect(&class, bar.left, top, width, STRIP));
        }
        cross(group, bar.right, bar.middle)
    }

    /// Draws many short spans as one shape.
    fn merged(&self, group: Group, merged: &MergedSpans, bar: &Bar) -> Group {
        let colour = merged.lock.map_or("mixed".to_owned(), |lock| colour(lock).to_string());
        let holds = merged.holds + merged.lost;
        let (part, least) = if holds > 0 { (1.0, LEAST_HOLD) } else { (WAIT, LEAST_WAIT) };
        let fill = match (holds, merged.lock) {
            (0, Some(_)) => format!("url(#wait{colour})"),
            _ => format!("url(#merged{colour})"),
        };
        let shape = bar.thin(part).rect("merged", least).set("fill", fill);
        let group = group.add(shape.add(tooltip(&self.counts(merged))));
        if merged.lost > 0 { cross(group, bar.right, bar.middle) } else { group }
    }

    fn counts(&self, merged: &MergedSpans) -> String {
        let holds = number(merged.holds + merged.lost, "hold", "holds");
        let waits = number(merged.waits, "wait", "waits");
        let name = merged.lock.map_or("several locks", |lock| &self.locks[lock]);
        let (held, from) = (duration(merged.held), self.time(merged.from));
        let lost = if merged.lost > 0 { format!(", {} lost", merged.lost) } else { String::new() };
        format!("{holds} ({held} in all{lost}) and {waits} for {name}, from {from}")
    }

    fn held(&self, span: &Span) -> String {
        let (name, held) = (&self.locks[span.lock], duration(span.until - span.from));
        match (span.begun_before, span.unfinished) {
            (true, _) => format!("Held {name} before the start, until {}", self.time(span.until)),
            (false, true) => format!("Held {name} from {} to the end", self.time(span.from)),
            (false, false) => format!("Held {name} for {held}, from {}", self.time(span.from)),
        }
    }

    fn time(&self, time: f64) -> String {
        duration(self.layout.scale.since_start(time).max(0.0))
    }

    /// Draws arrows at the ends of a hold that goes on outside the picture.
    fn ends(&self, group: Group, span: &Span, bar: &Bar, class: &str) -> Group {
        let arrow = |x, step| arrow(class, x, bar, step);
        let group = if span.begun_before { group.add(arrow(bar.left - 1.0, -6.0)) } else { group };
        if span.unfinished { group.add(arrow(bar.right + 1.0, 6.0)) } else { group }
    }

    /// Draws the name of the lock in a bar, if there are several and there is room.
    fn name(&self, group: Group, span: &Span, bar: &Bar, class: &str) -> Group {
        let (size, room) = ((bar.height - 3.0).min(11.0), bar.right - bar.left - 8.0);
        if self.locks.len() < 2 || room < NAME {
            return group;
        }
        let name = shorten(&self.locks[span.lock], size, room);
        let class = format!("{class} inside");
        debug_assert!(width(&name, size) <= room, "{name} is wider than {room}");
        group.add(text(&class, bar.left + 4.0, bar.middle, size, &name))
    }
}

/// Draws a triangle that points outwards.
fn arrow(class: &str, x: f64, bar: &Bar, step: f64) -> Path {
    let (top, height) = (px(bar.middle - bar.height / 2.0), px(bar.height / 2.0));
    let (x, step) = (px(x), px(step));
    let shape = format!("M{x} {top}l{step} {height}l{} {height}z", -step);
    Path::new().set("class", class).set("d", shape)
}

/// Draws a cross, the end of a lost hold.
pub(crate) fn cross(group: Group, x: f64, y: f64) -> Group {
    let shape = format!("M{} {}l8 8m0 -8l-8 8", px(x - 4.0), px(y - 4.0));
    let line = |class: &str| Path::new().set("class", class).set("d", shape.clone());
    group.add(line("cross halo")).add(line("cross cross-ink"))
}

/// Draws a hollow diamond, a noticed loss.
pub(crate) fn diamond(x: f64, y: f64) -> Path {
    let shape = format!("M{} {}l5 5l-5 5l-5 -5z", px(x), px(y - 5.0));
    Path::new().set("class", "notice").set("d", shape)
}
