//! The export of the statistics through the facade of the crate `metrics`.
//!
//! Each client has one [`Exporter`]. A handle with a label has a [`Label`] of its client, which
//! finds the metrics of a kind without a mutex. A metric is registered at its first use. No code of
//! a recorder runs under a mutex, and panics of a recorder are caught.
//!
//! Without the feature `metrics` the types of this file do nothing.

pub(crate) use facade::Label;
pub(super) use facade::{Exported, Exporter};

#[cfg(feature = "metrics")]
mod facade {
    use std::fmt;
    use std::panic::{RefUnwindSafe, UnwindSafe};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use metrics::{Counter, Gauge, Histogram, Key, Level, Metadata, Recorder, Unit, with_recorder};

    use crate::stats::metrics::{COUNTERS, GAUGES, HISTOGRAMS, RECONNECTS};
    use crate::stats::metrics::{CounterMetric, GaugeMetric, HistogramMetric};
    use crate::stats::series::SeriesKey;
    use crate::util::sync::Mutex;
    use crate::util::system::{HashMap, OnceLock};
    use crate::util::threads;

    static METADATA: Metadata<'static> = Metadata::new("leasehold", Level::INFO, Some("leasehold"));

    /// Runs code of a recorder. Its panic must not end the drop of a guard.
    fn foreign(activity: impl FnOnce()) {
        threads::catch_panic("exporting a metric", activity);
    }

    /// The export of one client.
    #[derive(Debug, Default)]
    pub(crate) struct Exporter {
        /// The metrics of handles without a label.
        unlabelled: Label,
        /// The labels of all handles of this client so far. They live as long as the client, so a
        /// handle for one call registers no metrics anew.
        labels: Mutex<HashMap<Arc<str>, Label>>,
        reconnects: OnceLock<Counter>,
        is_described: AtomicBool,
    }

    /// A panic of a recorder is caught, and leaves the tables as they were.
    impl UnwindSafe for Exporter {}
    impl RefUnwindSafe for Exporter {}

    impl Exporter {
        /// Returns the label with this text.
        pub(crate) fn label(&self, text: &str) -> Label {
            let mut labels = self.labels.lock();
            match labels.get(text) {
                Some(label) => label.clone(),
                None => {
                    let text: Arc<str> = text.into();
                    labels.entry(Arc::clone(&text)).or_insert(Label::new(text)).clone()
                }
            }
        }

        /// Counts a connection that replaced a broken one.
        pub(crate) fn reconnected(&self) {
            foreign(|| self.reconnects().increment(1));
        }

        fn reconnects(&self) -> &Counter {
            self.reconnects.get().unwrap_or_else(|| {
                let counter = with_recorder(|recorder| {
                    recorder.register_counter(&Key::from_static_name(RECONNECTS.0), &METADATA)
                });
                self.reconnects.get_or_init(|| counter)
            })
        }

        /// Describes all metrics, once for each client: another client may have another recorder.
        fn describe(&self) {
            if !self.is_described.swap(true, Ordering::Relaxed) {
                with_recorder(describe);
                self.reconnects();
            }
        }
    }

    /// Gives units and descriptions to the recorder.
    fn describe(recorder: &dyn Recorder) {
        let counters = COUNTERS.iter().map(|(_, name, _, meaning)| (*name, *meaning));
        for (name, meaning) in counters.chain([RECONNECTS]) {
            recorder.describe_counter(name.into(), Some(Unit::Count), meaning.into());
        }
        for (_, name, meaning) in GAUGES {
            recorder.describe_gauge(name.into(), Some(Unit::Count), meaning.into());
        }
        for (_, name, meaning) in HISTOGRAMS {
            recorder.describe_histogram(name.into(), Some(Unit::Seconds), meaning.into());
        }
    }

    /// The label of a handle, with the metrics of each kind of lock. A clone is cheap.
    #[derive(Clone)]
    pub(crate) struct Label(Arc<LabelMetrics>);

    #[derive(Default)]
    struct LabelMetrics {
        text: Arc<str>,
        first_kind: KindMetrics,
    }

    /// The metrics of one kind of lock, and of the kinds that were used after it.
    ///
    /// A list. Threads append to it without a mutex, and remove nothing.
    #[derive(Default)]
    struct KindMetrics(OnceLock<Box<(MetricSet, KindMetrics)>>);

    impl Default for Label {
        fn default() -> Label {
            Label::new("".into())
        }
    }

    impl Label {
        fn new(text: Arc<str>) -> Label {
            Label(Arc::new(LabelMetrics { text, first_kind: KindMetrics::default() }))
        }

        /// Returns the metrics of a kind. Registers them at their first use.
        fn metrics(&self, kind: &'static str, exporter: &Exporter) -> &MetricSet {
            let mut next = &self.0.first_kind.0;
            loop {
                let (metrics, rest) = &**next.get().unwrap_or_else(|| {
                    exporter.describe();
                    // Before `get_or_init`, because other threads wait during that call.
                    let new = MetricSet::register(kind, &self.0.text);
                    next.get_or_init(|| Box::new((new, KindMetrics::default())))
                });
                if metrics.kind == kind {
                    return metrics;
                }
                next = &rest.0;
            }
        }
    }

    /// All handles with one text share one label.
    impl PartialEq for Label {
        fn eq(&self, other: &Label) -> bool {
            Arc::ptr_eq(&self.0, &other.0)
        }
    }

    impl fmt::Debug for Label {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            fmt::Debug::fmt(&self.0.text, f)
        }
    }

    /// The metrics of one kind of lock and one label, in the order of `metric_names.rs`.
    struct MetricSet {
        kind: &'static str,
        counters: [Counter; COUNTERS.len()],
        gauges: [Gauge; GAUGES.len()],
        histograms: [Histogram; HISTOGRAMS.len()],
    }

    impl MetricSet {
        fn register(kind: &'static str, label: &str) -> MetricSet {
            let key = |name: &'static str, reason: Option<&'static str>| {
                let labels = [("kind", kind.to_owned()), ("label", label.to_owned())];
                let reason = reason.map(|reason| ("reason", reason.to_owned()));
                Key::from_parts(name, &Vec::from_iter(labels.into_iter().chain(reason)))
            };
            with_recorder(|to| MetricSet {
                kind,
                counters: COUNTERS
                    .map(|(_, name, reason, _)| to.register_counter(&key(name, reason), &METADATA)),
                gauges: GAUGES.map(|(_, name, _)| to.register_gauge(&key(name, None), &METADATA)),
                histograms: HISTOGRAMS
                    .map(|(_, name, _)| to.register_histogram(&key(name, None), &METADATA)),
            })
        }
    }

    /// The exported metrics of one kind of lock and one label.
    pub(crate) struct Exported<'a> {
        exporter: &'a Exporter,
        kind: &'static str,
        /// `None` for a handle without a label.
        label: Option<Label>,
    }

    impl<'a> Exported<'a> {
        pub(crate) fn new(exporter: &'a Exporter, key: impl FnOnce() -> SeriesKey) -> Exported<'a> {
            let (kind, label) = key();
            Exported { exporter, kind, label }
        }

        pub(crate) fn is_same(&self, other: &Exported<'_>) -> bool {
            self.kind == other.kind && self.label == other.label
        }

        pub(crate) fn count(&self, metric: CounterMetric) {
            foreign(|| self.metrics().counters[metric as usize].increment(1));
        }

        pub(crate) fn raise(&self, metric: GaugeMetric) {
            foreign(|| self.metrics().gauges[metric as usize].increment(1));
        }

        pub(crate) fn lower(&self, metric: GaugeMetric) {
            foreign(|| self.metrics().gauges[metric as usize].decrement(1));
        }

        pub(crate) fn record(&self, metric: HistogramMetric, duration: Duration) {
            foreign(|| self.metrics().histograms[metric as usize].record(duration));
        }

        fn metrics(&self) -> &MetricSet {
            let label = self.label.as_ref().unwrap_or(&self.exporter.unlabelled);
            label.metrics(self.kind, self.exporter)
        }
    }

    impl fmt::Debug for Exported<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.debug_struct("Exported")
                .field("kind", &self.kind)
                .field("label", &self.label)
                .finish()
        }
    }
}

#[cfg(not(feature = "metrics"))]
mod facade {
    use std::fmt;
    use std::marker::PhantomData;
    use std::sync::Arc;
    use std::time::Duration;

    use crate::stats::metrics::{CounterMetric, GaugeMetric, HistogramMetric};
    use crate::stats::series::SeriesKey;

    /// The export of one client.
    #[derive(Debug, Default)]
    pub(crate) struct Exporter;

    impl Exporter {
        pub(crate) fn label(&self, text: &str) -> Label {
            Label(text.into())
        }

        pub(crate) fn reconnected(&self) {}
    }

    /// The label of a handle.
    #[derive(Clone, PartialEq, Eq)]
    pub(crate) struct Label(Arc<str>);

    impl fmt::Debug for Label {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            fmt::Debug::fmt(&self.0, f)
        }
    }

    /// The exported metrics of one kind of lock and one label.
    #[derive(Debug)]
    pub(crate) struct Exported<'a>(PhantomData<&'a Exporter>);

    impl<'a> Exported<'a> {
        pub(crate) fn new(_: &'a Exporter, _: impl FnOnce() -> SeriesKey) -> Exported<'a> {
            Exported(PhantomData)
        }

        pub(crate) fn is_same(&self, _: &Exported<'_>) -> bool {
            true
        }

        pub(crate) fn count(&self, _: CounterMetric) {}

        pub(crate) fn raise(&self, _: GaugeMetric) {}

        pub(crate) fn lower(&self, _: GaugeMetric) {}

        pub(crate) fn record(&self, _: HistogramMetric, _: Duration) {}
    }
}
