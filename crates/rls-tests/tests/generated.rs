//! The code in `crates/rls/src/generated` is that of its definitions.
//!
//! It is in the tree so that a build needs no generator. `WEIR_REFERENCE=write` writes it.

use std::fs;
use std::path::Path;

const SERVICES: [&str; 3] = [
    "envoy/service/rate_limit_quota/v3/rlqs.proto",
    "envoy/service/ratelimit/v3/rls.proto",
    "grpc/health/v1/health.proto",
];

#[test]
fn generated_code_is_that_of_the_definitions() {
    let rls = Path::new(env!("CARGO_MANIFEST_DIR")).join("../rls");
    let present = rls.join("src/generated");
    let made = tempfile::tempdir().unwrap();
    // protox compiles without protoc.
    let definitions = protox::compile(SERVICES, [rls.join("proto")]).unwrap();
    tonic_prost_build::configure()
        .build_client(false)
        .out_dir(made.path())
        .compile_fds(definitions)
        .unwrap();
    let files = |folder: &Path| {
        let entries = fs::read_dir(folder).unwrap().map(Result::unwrap);
        let mut names: Vec<_> = entries.map(|entry| entry.file_name()).collect();
        names.sort();
        names
    };
    if std::env::var_os("WEIR_REFERENCE").is_some_and(|value| value == "write") {
        for name in files(made.path()) {
            fs::copy(made.path().join(&name), present.join(&name)).unwrap();
        }
    }
    assert_eq!(files(&present), files(made.path()));
    for name in files(made.path()) {
        assert_eq!(
            fs::read_to_string(present.join(&name)).unwrap(),
            fs::read_to_string(made.path().join(&name)).unwrap(),
            "{}: run `WEIR_REFERENCE=write cargo test -p rls-tests --test generated`",
            name.display()
        );
    }
}
