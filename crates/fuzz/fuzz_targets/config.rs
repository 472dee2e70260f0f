#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| weir_fuzz::entries::config(text));
