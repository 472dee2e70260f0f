//! Explores a model.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

/// Runs a model under every interleaving with at most `preemptions` changes of CPU that the model did not ask for. A
/// failed assertion ends it, with the interleaving. Prints and returns how many interleavings there were.
pub fn explore(name: &str, preemptions: usize, model: impl Fn() + Send + Sync + 'static) -> usize {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 100_000;
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    let started = Instant::now();
    builder.check(move || {
        counted.fetch_add(1, Relaxed);
        model();
    });
    let runs = runs.load(Relaxed);
    println!(
        "{name}: {runs} interleavings in {:.1} s",
        started.elapsed().as_secs_f64()
    );
    runs
}
