//! Pictures of events that tests make: well-formed, complete, small, and without overlaps.

use Happening::{Acquired, Expired, Kept, Lost, Mark, Released, Waiting};
use roxmltree::{Document, Node};

use crate::observe::event::{Happening, LockEvent};
use crate::timeline::fixtures::{hold, of_thread, timeline};
use crate::timeline::rows::Timeline;
use crate::timeline::spans::Window;

fn picture(events: &[LockEvent]) -> String {
    super::draw(&timeline(events)).to_string()
}

#[track_caller]
fn parse(picture: &str) -> Document<'_> {
    Document::parse(picture).unwrap_or_else(|error| panic!("{error}:\n{picture}"))
}

/// Returns the elements with this class among others.
fn of_class<'a>(document: &'a Document<'_>, class: &'a str) -> Vec<Node<'a, 'a>> {
    let is_of = move |node: &Node<'_, '_>| {
        node.attribute("class").is_some_and(|classes| classes.split(' ').any(|it| it == class))
    };
    document.descendants().filter(is_of).collect()
}

/// Returns all text of an element.
fn text(node: &Node<'_, '_>) -> String {
    node.descendants()
        .filter(Node::is_text)
        .filter_map(|it| it.text())
        .collect::<Vec<_>>()
        .join(" ")
}

fn number(node: &Node<'_, '_>, name: &str) -> f64 {
    node.attribute(name).and_then(|value| value.parse().ok()).expect("a number")
}

/// Returns the events of `count` processes that take turns for a minute.
fn turns(count: u32) -> Vec<LockEvent> {
    let turn = |number: u32| {
        let (pid, start) = (1000 + number % count, f64::from(number) / 5.0);
        let waiting = of_thread((start - 0.1).max(0.0), Waiting, pid, "main");
        [&[waiting][..], &hold(start, start + 0.15, pid, "main")].concat()
    };
    (0..300).flat_map(turn).collect()
}

#[test]
fn each_thread_has_a_row_with_its_name() {
    for (count, threads) in [(1, 2), (2, 1), (50, 1), (10, 5)] {
        let threads = (0..threads).map(|thread| format!("thread-{thread}"));
        let rows = threads.flat_map(|thread| (0..count).map(move |pid| (pid, thread.clone())));
        let rows: Vec<(u32, String)> = rows.collect();
        let events: Vec<LockEvent> =
            rows.iter().flat_map(|(pid, thread)| hold(0.0, 1.0, *pid, thread)).collect();
        let picture = picture(&events);
        let document = parse(&picture);
        let drawn = of_class(&document, "row");
        assert_eq!(drawn.len(), rows.len());
        for row in &drawn {
            assert!(text(row).contains("thread-"), "{}", text(row));
            assert!(text(row).contains("Held a for 1.00 s"), "{}", text(row));
        }
        let names: String = of_class(&document, "muted").iter().map(text).collect();
        assert!((0..count).all(|pid| names.contains(&format!("pid {pid}"))), "{names}");
    }
}

#[test]
fn the_minimum_of_an_ended_hold_is_drawn_in_its_row() {
    let [acquired, released] = hold(0.0, 1.0, 7, "x");
    let kept = LockEvent { until: Some(40.0), ..of_thread(1.0, Kept, 7, "x") };
    let later = hold(50.0, 60.0, 8, "x");
    let picture = picture(&[&[acquired, released, kept][..], &later].concat());
    let document = parse(&picture);
    let [bar] = of_class(&document, "kept")[..] else { panic!("{picture}") };
    assert!(text(&bar).contains("A minimum kept a for 39.00 s, from 1.00 s"), "{}", text(&bar));
    assert!(picture.contains("minimum of a hold that has ended"));
    assert!(picture.contains("2 processes, 2 threads, 2 holds"), "{picture}");
}

#[test]
fn unseen_holds_are_drawn_with_the_height_of_their_rate() {
    let seen = |at, holds| LockEvent { holds: Some(holds), ..of_thread(at, Acquired, 7, "x") };
    let released = |at| of_thread(at, Released, 7, "x");
    let events = [
        seen(0.0, 1),
        released(1.0),
        seen(5.0, 41),
        released(6.0),
        seen(10.0, 21),
        released(100.0),
    ];
    let picture = picture(&events);
    let document = parse(&picture);
    let height = |node: &Node<'_, '_>| number(node, "height");
    let [_, many, few] = &of_class(&document, "unseen")[..] else { panic!("{picture}") };
    assert!((height(few) / height(many) - 0.5).abs() < 0.01, "half as many per second");
    assert!(text(many).contains("40 more holds of a from 1.00 s to 5.00 s"), "{}", text(many));
}

#[test]
fn rows_do_not_overlap_and_are_within_the_picture() {
    for count in [2, 10, 50] {
        let picture = picture(&turns(count));
        let document = parse(&picture);
        let height = number(&document.root_element(), "height");
        let mut bottom = 0.0;
        for row in of_class(&document, "row") {
            let bars = row.descendants().filter(|node| node.has_tag_name("rect"));
            let reach =
                bars.map(|bar| (number(&bar, "y"), number(&bar, "y") + number(&bar, "height")));
            let (top, end) = reach.fold((f64::MAX, 0.0_f64), |a, b| (a.0.min(b.0), a.1.max(b.1)));
            assert!(top > bottom, "{count}: a row begins at {top}, another ends at {bottom}");
            bottom = end;
        }
        assert!(bottom < height);
    }
}

#[test]
fn holds_waits_and_losses_have_shapes_of_their_own() {
    let at = |at, event| of_thread(at, event, 7, "x");
    let events = [
        at(0.0, Waiting),
        at(2.0, Acquired),
        at(4.0, Released),
        at(5.0, Acquired),
        at(7.0, Expired),
        at(8.0, Lost),
        LockEvent { text: Some("killed".into()), ..at(6.0, Mark) },
    ];
    let picture = picture(&events);
    let document = parse(&picture);
    let row = of_class(&document, "row")[0];
    let in_row = |class: &str| {
        of_class(&document, class)
            .into_iter()
            .filter(|node| node.ancestors().any(|it| it == row))
            .count()
    };
    let shapes = ["lock0", "wait", "lost-edge", "cross-ink", "notice"].map(in_row);
    assert_eq!(shapes, [1, 1, 1, 1, 1]);
    let titles = text(&row);
    for title in [
        "Waited 2.00 s for a",
        "Held a for 2.00 s, from 2.00 s",
        "lost at 7.00 s",
        "noticed at 8.00 s",
    ] {
        assert!(titles.contains(title), "{title}: {titles}");
    }
    assert!(text(&document.root_element()).contains("killed"));
    assert_eq!(of_class(&document, "marked").len(), 1, "the mark is on its process");
    assert_eq!(of_class(&document, "mark").len(), 1);
}

#[test]
fn a_hold_that_goes_on_has_an_arrow() {
    let present = LockEvent { present: true, ..of_thread(0.0, Acquired, 7, "x") };
    let timeline = Timeline::new(&[present], Window { from: 0.0, until: 9.0 }, &[]);
    let picture = super::draw(&timeline).to_string();
    let document = parse(&picture);
    let row = of_class(&document, "row")[0];
    let arrows = row.descendants().filter(|node| node.has_tag_name("path")).count();
    assert_eq!(arrows, 2, "the hold began before and has not ended");
}

#[test]
fn texts_are_escaped() {
    let evil = "<&\"'>\u{0}\u{1b}]]>\u{ffff}\n<script>";
    let mut events = turns(2);
    for event in &mut events {
        event.name = evil.into();
        event.thread = Some(evil.into());
        event.host = Some(evil.into());
        event.label = Some(evil.into());
    }
    events.push(LockEvent {
        name: evil.into(),
        event: Mark,
        at: 3.0,
        text: Some(evil.into()),
        ..LockEvent::default()
    });
    let picture = picture(&events);
    let document = parse(&picture);
    assert!(!document.descendants().any(|node| node.has_tag_name("script")));
    let clean = "<&\"'>��]]>��<script>";
    for class in ["row", "heading", "flag", "on-flag"].map(|it| of_class(&document, it)) {
        assert!(!class.is_empty());
    }
    assert!(text(&of_class(&document, "heading")[0]).contains(clean));
    assert!(text(&of_class(&document, "on-flag")[0]).contains(clean));
    assert!(text(&of_class(&document, "row")[0]).contains(clean));
}

#[test]
fn long_names_are_shortened_and_whole_in_their_tooltips() {
    let long = "a-very-long-name-".repeat(20);
    let mut events = [turns(2), hold(0.0, 1.0, 7, &long).into()].concat();
    for event in &mut events {
        event.name = long.clone();
        event.label = Some(long.clone());
    }
    let picture = picture(&events);
    let document = parse(&picture);
    for node in document.descendants().filter(|node| node.is_text()) {
        let is_whole =
            node.ancestors().any(|it| it.has_tag_name("title") || it.has_tag_name("desc"));
        let is_long = node.text().unwrap_or_default().chars().count() > 130;
        assert!(is_whole || !is_long || node.ancestors().any(|it| it.has_tag_name("style")));
    }
    let titles = document.descendants().filter(|node| node.has_tag_name("title"));
    assert!(titles.filter(|node| text(node).contains(&long)).count() >= 4);
}

#[test]
fn a_picture_without_events_says_so() {
    let window = Window { from: 100.0, until: 110.0 };
    let observed = Timeline::new(&[], window, &["a".into()]);
    for (timeline, title) in [(timeline(&[]), "locks"), (observed, "the lock a")] {
        let picture = super::draw(&timeline).to_string();
        let document = parse(&picture);
        assert!(of_class(&document, "row").is_empty());
        let texts = text(&document.root_element());
        assert!(texts.contains("Nothing held these locks"), "{texts}");
        assert!(texts.contains(&format!("Timeline of {title}")), "{texts}");
    }
}

#[test]
fn several_locks_have_colours_and_a_legend() {
    let names: Vec<String> = (0..40).map(|number| format!("lock-{number}")).collect();
    let events = names.iter().zip(0u32..).flat_map(|(name, at)| {
        let at = f64::from(at) * 10.0;
        hold(at, at + 9.0, 7, "x").map(|event| LockEvent { name: name.clone(), ..event })
    });
    let picture = picture(&events.collect::<Vec<_>>());
    let document = parse(&picture);
    let row = of_class(&document, "row")[0];
    for number in 0..super::style::COLOURS {
        let class = format!("lock{number}");
        let of_lock = of_class(&document, &class);
        assert!(of_lock.iter().any(|node| node.ancestors().any(|it| it == row)), "{number}");
    }
    let texts = text(&document.root_element());
    assert!(texts.contains("lock-23") && texts.contains("and 16 more"), "{texts}");
}

#[test]
fn thousands_of_holds_make_a_small_file() {
    let hold = |number: u32| {
        let at = f64::from(number) / 100.0;
        hold(at, at + 0.005, 1000 + number % 10, "main")
    };
    let events: Vec<LockEvent> = (0..20_000).flat_map(hold).collect();
    let picture = picture(&events);
    assert!(picture.len() < 100_000, "{} bytes", picture.len());
    assert!(picture.contains("20000 holds"));
    assert!(picture.contains("2000 holds (10.00 s in all) and 0 waits for a"));
}

#[test]
fn flags_do_not_cover_each_other() {
    let mark = |number: u32| LockEvent {
        text: Some(format!("mark {number}")),
        ..of_thread(f64::from(number) / 3.0, Mark, 7, "x")
    };
    let events: Vec<LockEvent> =
        hold(0.0, 30.0, 7, "x").into_iter().chain((0..90).map(mark)).collect();
    let picture = picture(&events);
    let document = parse(&picture);
    let flags: Vec<[f64; 4]> = of_class(&document, "flag")
        .iter()
        .map(|node| ["x", "y", "width", "height"].map(|name| number(node, name)))
        .collect();
    assert!(flags.len() > 40, "{} flags", flags.len());
    for (number, a) in flags.iter().enumerate() {
        for b in &flags[..number] {
            let apart =
                |axis: usize| a[axis] >= b[axis] + b[axis + 2] || b[axis] >= a[axis] + a[axis + 2];
            assert!(apart(0) || apart(1), "{a:?} and {b:?}");
        }
    }
}

#[test]
fn the_picture_has_a_title_a_description_and_an_opaque_ground() {
    let picture = picture(&turns(2));
    let document = parse(&picture);
    let root = document.root_element();
    assert_eq!(root.attribute("aria-labelledby"), Some("title desc"));
    let with_id = |id: &str| {
        root.descendants().find(|node| node.attribute("id") == Some(id)).map(|node| text(&node))
    };
    assert_eq!(with_id("title").as_deref().map(str::trim), Some("Timeline of the lock a"));
    let description = with_id("desc").unwrap_or_default();
    assert!(
        description.contains("program main: 150 holds, 22.50 s in all, 150 waits."),
        "{description}"
    );
    let ground = of_class(&document, "page")[0];
    for side in ["width", "height"] {
        assert_eq!(ground.attribute(side), root.attribute(side));
    }
    assert!(picture.contains("prefers-color-scheme:dark"));
}
