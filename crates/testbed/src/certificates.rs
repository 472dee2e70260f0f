//! Certificates for servers of tests.

use std::path::Path;
use std::process::Command;

/// Writes an authority, `ca.pem`, and a server's certificate for 127.0.0.1 under it, `certificate.pem` with `key.pem`.
pub fn write(folder: &Path) {
    let openssl = |arguments: &[&str]| {
        let output = Command::new("openssl")
            .args(arguments)
            .current_dir(folder)
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    };
    std::fs::write(folder.join("san"), "subjectAltName=IP:127.0.0.1\n").unwrap();
    let key = [
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
    ];
    openssl(
        &[
            &[
                "req", "-x509", "-days", "2", "-subj", "/CN=weir", "-keyout", "ca.key", "-out",
                "ca.pem",
            ],
            &key[..],
        ]
        .concat(),
    );
    openssl(
        &[
            &[
                "req",
                "-subj",
                "/CN=store",
                "-keyout",
                "key.pem",
                "-out",
                "request",
            ],
            &key[..],
        ]
        .concat(),
    );
    openssl(&[
        "x509",
        "-req",
        "-in",
        "request",
        "-days",
        "2",
        "-CA",
        "ca.pem",
        "-CAkey",
        "ca.key",
        "-CAcreateserial",
        "-extfile",
        "san",
        "-out",
        "certificate.pem",
    ]);
}
