use std::fs;
use std::path::Path;

use common::packet::Direction;
use config::{load, parse};
use proptest::prelude::*;

use super::compile;

const CONFIGS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../config");

#[test]
fn every_config_that_is_shipped_compiles() {
    let paths = fs::read_dir(CONFIGS).unwrap().map(|entry| entry.unwrap().path());
    let configs = paths.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("limits."));
    for path in configs {
        let loaded = load(&path).unwrap_or_else(|error| panic!("{error}"));
        compile(&loaded.config, Direction::Ingress).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}

proptest! {
    #[test]
    fn a_changed_example_is_an_error_or_compiles(
        at in 0usize..2_000,
        insert in prop_oneof![Just(""), Just("\""), Just("]"), Just("0"), Just("\n"), Just("= [")],
        length in 0usize..20,
    ) {
        let mut text = include_str!("../../../../config/limits.example.toml").to_owned();
        let boundary = |at: usize| (0..=at.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        let cut = boundary(at)..boundary(at + length);
        text.replace_range(cut, insert);
        let _ = parse(Path::new("limits.toml"), &text).map(|loaded| compile(&loaded.config, Direction::Ingress));
    }
}
