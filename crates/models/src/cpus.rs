//! CPUs of a model.

use std::sync::Arc;

/// What one CPU does with the shared memory.
pub type Work<M, R> = Box<dyn FnOnce(&M) -> R>;

/// Runs each of the works on a CPU of its own, all at the same time, and returns their results in this order.
pub fn cpus<M: 'static, R: 'static>(memory: &Arc<M>, works: Vec<Work<M, R>>) -> Vec<R> {
    let threads: Vec<_> = works
        .into_iter()
        .map(|work| {
            let memory = Arc::clone(memory);
            loom::thread::spawn(move || work(&memory))
        })
        .collect();
    threads
        .into_iter()
        .map(|thread| thread.join().expect("a CPU of the model failed"))
        .collect()
}
