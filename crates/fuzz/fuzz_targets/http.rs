#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| weir_fuzz::entries::http(bytes));
