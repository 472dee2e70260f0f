//! Input that is none, or too much.

use testbed::tests;
use testbed::trials::Test;
use weir::import::{Format, ImportError, Options, import};

use super::{config_of, import_one, imported, nft, parsed};

pub const TESTS: &[Test] = tests![
    unknown_formats_are_errors_with_a_fix,
    deep_and_wide_json_is_refused,
    a_million_lines_of_rubbish_and_lines_of_ten_megabytes_are_counted,
    a_million_prefixes_are_one_list,
    no_text_of_a_rule_becomes_a_line_of_the_config,
    mutated_samples_give_a_valid_config_or_an_error,
];

fn error(text: &[u8], options: &Options) -> String {
    let result = import(&[("input".to_owned(), text.to_vec())], options);
    result.map(|import| import.config).unwrap_err().to_string()
}

fn unknown_formats_are_errors_with_a_fix() {
    let detect = Options::default();
    for (text, words) in [
        (&b""[..], "empty input"),
        (b"\n# only a comment\n", "empty input"),
        (b"hello world\n", "--from"),
        (b"\x7fELF\x02\x01\x01\x00\xff\xfe", "byte 9 is not UTF-8"),
        (b"{\"a\": 1}", "nft -j list ruleset"),
        (b"{\"nftables\": [", "invalid JSON"),
        (b"table inet filter {\n", "nft -j list ruleset"),
        (b"192.0.2.1\n", "agent ban --file"),
        (
            b"[{'sshd': ['nobody']}]",
            "no rule, set or address of fail2ban",
        ),
    ] {
        let told = error(text, &detect);
        assert!(
            told.starts_with("input: ") && told.contains(words),
            "{told}"
        );
    }
    for format in [Format::Ipset, Format::Fail2ban, Format::Hashlimit] {
        let options = Options {
            format: Some(format),
            ..Options::default()
        };
        assert!(
            error(b"what is this\nand this\n", &options).contains("2 lines")
                || format == Format::Fail2ban
        );
    }
}

fn deep_and_wide_json_is_refused() {
    let deep = format!("{{\"nftables\": {}", "[".repeat(1 << 20));
    assert!(error(deep.as_bytes(), &Options::default()).contains("recursion limit"));
    let wide = format!("{{\"nftables\": [{}0]}}", "0,".repeat(9_000_000));
    assert!(error(wide.as_bytes(), &Options::default()).contains("more than"));
    // Deep in a rule, and of wrong types.
    for expr in [
        "[[[[[[]]]]]]",
        "{\"match\": 3}",
        "{\"set\": {\"set\": 7}}",
        "{\"limit\": {\"rate\": -1}}",
        "7",
        "{}",
    ] {
        config_of(&imported(&[&nft(expr)]));
    }
}

fn a_million_lines_of_rubbish_and_lines_of_ten_megabytes_are_counted() {
    let rubbish = format!(
        "create x hash:ip\nadd x 192.0.2.1\n{}",
        "what is this\n".repeat(1_000_000)
    );
    let import = imported(&[&rubbish]);
    assert_eq!(
        import.not_carried_over["lines that are not understood"].rules,
        ["1000000 lines of input"]
    );
    let long = format!(
        "*filter\n-A INPUT -p tcp {} -j DROP\n-A INPUT -s 192.0.2.1 -j DROP\n",
        "x".repeat(10 << 20)
    );
    let import = imported(&[&long]);
    assert!(import.config.len() < 4096, "{}", import.config.len());
    assert_eq!(
        (config_of(&import).ban_lists.len(), import.ban_lists),
        (1, 1)
    );
    // A million rules without an equal: some are named, and the config stays small.
    let rules = format!(
        "*filter\n{}",
        "-A INPUT -p tcp --dport 80 -m recent --rcheck -j DROP\n".repeat(400_000)
    );
    let import = imported(&[&rules]);
    assert!(
        import.config.len() < 64 << 10 && import.config.contains("and 399,950 more"),
        "{}",
        import.config.len()
    );
    let more = error(
        format!("*filter\n{}", "-A INPUT -j DROP\n".repeat(1_000_000)).as_bytes(),
        &Options::default(),
    );
    assert!(more.contains("more than 500000 rules"), "{more}");
    let sets: String = (0..600_000)
        .map(|nth| format!("create x{nth} hash:ip\n"))
        .collect();
    assert!(error(sets.as_bytes(), &Options::default()).contains("more than 500000 rules"));
    // 40 chains, each with two jumps to the next: as many ways as a kernel would not go.
    let jumps: String = (0..40)
        .map(|nth| format!("-A c{nth} -j c{}\n", nth + 1).repeat(2))
        .collect();
    imported(&[&format!(
        "*filter\n-A INPUT -j c0\n{jumps}-A c40 -s 192.0.2.1 -j DROP\n"
    )]);
}

fn a_million_prefixes_are_one_list() {
    let addresses = (0..1_000_000u32).map(|nth| std::net::Ipv4Addr::from(0x0b00_0000 + 2 * nth));
    let lines: String = addresses
        .clone()
        .map(|address| format!("add x {address}\n"))
        .collect();
    let import = imported(&[&format!("create x hash:ip\n{lines}")]);
    assert_eq!(import.lists[0].prefixes.len(), 1_000_000);
    let elements: Vec<String> = addresses
        .map(|address| format!("{{\"prefix\": {{\"addr\": \"{address}\", \"len\": 32}}}}"))
        .collect();
    let set = format!(
        "{{\"nftables\": [{{\"set\": {{\"family\": \"ip\", \"table\": \"t\", \"name\": \"x\", \"type\": \"ipv4_addr\", \
         \"elem\": [{}]}}}}]}}",
        elements.join(",")
    );
    assert_eq!(
        imported(&[&set]).lists[0].prefixes,
        import.lists[0].prefixes
    );
}

fn no_text_of_a_rule_becomes_a_line_of_the_config() {
    let hostile = r#"x\n[[limit]]\nname = \u0000 \u001b[31m \u0085 \u2028 \" rate"#;
    let set = format!(
        "{{\"nftables\": [{{\"set\": {{\"family\": \"ip\", \"table\": \"t\", \"name\": \"../../{hostile}\", \"type\": \
         \"ipv4_addr\", \"elem\": [\"192.0.2.1\"]}}}}]}}"
    );
    let import = imported(&[&set]);
    let config = config_of(&import);
    assert!(
        config.limits.is_empty() && !import.config.contains('\u{1b}'),
        "{}",
        import.config
    );
    let path = import.lists[0].path.display().to_string();
    assert!(
        path.starts_with("/etc/weir/lists/") && !path.contains(".."),
        "{path}"
    );
    let rules = "*filter\n-A INPUT -p udp -m hashlimit --hashlimit-above 5/sec --hashlimit-mode srcip --hashlimit-name \
                 \"a\\\"\\nb\u{1b}\" -m comment --comment \"]\u{7}\r [[limit]]\" -j DROP\n-A INPUT -i \"e\\\"th\" -s 192.0.2.1 -j DROP\n";
    let import = imported(&[rules]);
    assert_eq!(config_of(&import).limits.len(), 1, "{}", import.config);
}

fn mutated_samples_give_a_valid_config_or_an_error() {
    let samples = [
        super::NFTABLES,
        super::IPTABLES,
        super::IPSET,
        super::BANNED,
        super::BANIP,
        super::STATUS,
        super::JAILS,
    ];
    let mut seed = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = |below: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed % below as u64) as usize
    };
    for sample in samples {
        for _ in 0..200 {
            let mut bytes = sample.as_bytes().to_vec();
            for _ in 0..=next(4) {
                let (at, length) = (next(bytes.len()), next(20));
                match next(4) {
                    0 => bytes[at] = b"0 \"-{}[],:\n!@x"[next(14)],
                    1 => drop(bytes.drain(at..(at + length).min(bytes.len()))),
                    2 => {
                        let part = bytes[at..(at + length).min(bytes.len())].to_vec();
                        bytes.splice(at..at, part);
                    }
                    _ => bytes.truncate(at.max(1)),
                }
                if bytes.is_empty() {
                    bytes.push(b'x');
                }
            }
            match import_one(&String::from_utf8_lossy(&bytes), &Options::default()) {
                Ok(import) => drop(parsed(&import.config)),
                Err(ImportError::NotText(..)) => panic!("the text is UTF-8"),
                Err(_) => {}
            }
        }
    }
}
