//! Signals that interrupt the verifier while a policy is loaded.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use nix::sys::pthread::{pthread_kill, pthread_self};
use nix::sys::signal::Signal;

use super::{Pins, image, load};

/// Fewer than a load has attempts; each attempt takes longer than the time between two of them.
const SIGNALS: u32 = 15;

pub fn a_policy_is_loaded_although_signals_interrupt_the_verifier() {
    let is_handled = Arc::new(AtomicBool::new(false));
    let signal = Signal::SIGUSR1;
    let handler = signal_hook::flag::register(signal as i32, Arc::clone(&is_handled)).unwrap();
    let loader = pthread_self();
    let is_loaded = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..SIGNALS {
                pthread_kill(loader, signal).unwrap();
                if is_loaded.load(Ordering::Relaxed) {
                    break;
                }
                thread::sleep(Duration::from_millis(10));
            }
        });
        let _datapath = load(
            &image("[[limit]]\nname = \"a\"\nrate = \"1/s\"\n"),
            &Pins::new(),
        );
        is_loaded.store(true, Ordering::Relaxed);
    });
    signal_hook::low_level::unregister(handler);
    assert!(is_handled.load(Ordering::Relaxed));
}
