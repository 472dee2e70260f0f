//! One scrape: families of counters and gauges.

use prometheus::{CounterVec, Error, GaugeVec, IntCounterVec, IntGaugeVec, Opts, Registry};

use crate::server::metrics::ledger::Ledger;

/// One scrape in progress.
pub(super) struct Page<'a> {
    pub registry: Registry,
    pub ledger: &'a mut Ledger,
}

/// The values of a metric's labels, and its value.
pub(super) type Row<'a, T, const LABELS: usize> = ([&'a str; LABELS], T);

/// Seconds are counted in these parts, since sums of floats accumulate rounding errors.
const PARTS: f64 = 1e6;

impl Page<'_> {
    fn series(name: &str, labels: &[&str]) -> String {
        // No label value has this byte: names in a config are printable.
        format!("{name}\u{1f}{}", labels.join("\u{1f}"))
    }

    pub(super) fn counter<'r, const LABELS: usize>(
        &mut self,
        name: &str,
        help: &str,
        labels: [&str; LABELS],
        rows: impl IntoIterator<Item = Row<'r, u64, LABELS>>,
    ) -> Result<(), Error> {
        let family = IntCounterVec::new(Opts::new(name, help), &labels)?;
        for (values, now) in rows {
            let total = self.ledger.total(&Self::series(name, &values), now);
            family.get_metric_with_label_values(&values)?.inc_by(total);
        }
        self.registry.register(Box::new(family))
    }

    pub(super) fn seconds<'r, const LABELS: usize>(
        &mut self,
        name: &str,
        help: &str,
        labels: [&str; LABELS],
        rows: impl IntoIterator<Item = Row<'r, f64, LABELS>>,
    ) -> Result<(), Error> {
        let family = CounterVec::new(Opts::new(name, help), &labels)?;
        for (values, now) in rows {
            let total = self
                .ledger
                .total(&Self::series(name, &values), (now * PARTS) as u64);
            family
                .get_metric_with_label_values(&values)?
                .inc_by(total as f64 / PARTS);
        }
        self.registry.register(Box::new(family))
    }

    pub(super) fn gauge<'r, const LABELS: usize>(
        &mut self,
        name: &str,
        help: &str,
        labels: [&str; LABELS],
        rows: impl IntoIterator<Item = Row<'r, u64, LABELS>>,
    ) -> Result<(), Error> {
        let family = IntGaugeVec::new(Opts::new(name, help), &labels)?;
        for (values, now) in rows {
            family
                .get_metric_with_label_values(&values)?
                .set(i64::try_from(now).unwrap_or(i64::MAX));
        }
        self.registry.register(Box::new(family))
    }

    pub(super) fn ratio<'r, const LABELS: usize>(
        &mut self,
        name: &str,
        help: &str,
        labels: [&str; LABELS],
        rows: impl IntoIterator<Item = Row<'r, f64, LABELS>>,
    ) -> Result<(), Error> {
        let family = GaugeVec::new(Opts::new(name, help), &labels)?;
        for (values, now) in rows {
            family.get_metric_with_label_values(&values)?.set(now);
        }
        self.registry.register(Box::new(family))
    }
}
