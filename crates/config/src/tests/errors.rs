//! Errors and warnings: message, position and correction.

use super::*;

#[test]
fn every_error_says_where_it_is_and_what_to_write() {
    let rate = "rate = \"10/s\"\n";
    for (text, line, column, message, help) in [
        // Syntax and shape.
        ("[agent", 1, 7, "", "TOML syntax"),
        ("agent = 5", 1, 9, "agent is an integer", "[agent]"),
        ("limit = 5", 1, 9, "limit is an integer", "[[limit]]"),
        (
            "[agnet]",
            1,
            2,
            "unknown key \"agnet\"",
            "did you mean \"agent\"?",
        ),
        (
            "[[limits]]",
            1,
            3,
            "unknown key \"limits\"",
            "did you mean \"limit\"?",
        ),
        // [agent].
        (
            "[agent]\nmode = \"enfroce\"",
            2,
            8,
            "invalid mode \"enfroce\"",
            "did you mean \"enforce\"?",
        ),
        (
            "[agent]\nmode = \"enforce\"\nmode = \"observe\"",
            3,
            1,
            "duplicate key",
            "leave out one",
        ),
        (
            "[agent]\nmode = 5",
            2,
            8,
            "mode is an integer",
            "mode = \"enforce\"",
        ),
        (
            "[agent]\nmodes = \"enforce\"",
            2,
            1,
            "unknown key \"modes\"",
            "did you mean \"mode\"?",
        ),
        (
            "[agent]\ninterfaces = \"eth0\"",
            2,
            14,
            "interfaces is a string",
            "a list",
        ),
        (
            "[agent]\ninterfaces = [\"a/b\"]",
            2,
            15,
            "invalid interface name",
            "ip link",
        ),
        (
            "[agent]\ncontrol = \"weir.sock\"",
            2,
            11,
            "not an absolute path",
            "begin it with /",
        ),
        (
            "[agent]\nmax_sources = 0",
            2,
            15,
            "out of range",
            "from 1 to",
        ),
        (
            "[agent]\nmax_sources = -1",
            2,
            15,
            "out of range",
            "from 1 to",
        ),
        (
            "[agent]\nmax_sources = \"1M\"",
            2,
            15,
            "max_sources is a string",
            "whole number",
        ),
        (
            "[agent]\nnever_limit = [\"10.0.0.300\"]",
            2,
            16,
            "neither an address nor a prefix",
            "192.0.2.10",
        ),
        (
            "[agent]\nnever_limit = [\"10.0.0.1/8\"]",
            2,
            16,
            "bits set beyond",
            "10.0.0.0/8",
        ),
        (
            "[agent]\nmetrics = \"localhost:9464\"",
            2,
            11,
            "invalid address \"localhost:9464\" of metrics",
            "[::1]:9464",
        ),
        (
            "[agent]\nlive = true",
            2,
            8,
            "live requires metrics",
            "127.0.0.1:9464",
        ),
        (
            "[agent]\nlive = \"yes\"",
            2,
            8,
            "live is a string",
            "true, false",
        ),
        (
            "[agent]\nmetrics = \"127.0.0.1:1\"\nlive = []",
            3,
            8,
            "live is an array",
            "true, false",
        ),
        (
            "[agent]\nmetrics = \"127.0.0.1:1\"\nlive = [\"a.org:80\"]",
            3,
            9,
            "invalid host name \"a.org:80\"",
            "without a port",
        ),
        (
            "[agent]\nmetrics = \"127.0.0.1:1\"\nlive = [\"*\"]",
            3,
            9,
            "invalid host name \"*\"",
            "weir.example.org",
        ),
        // concurrent.
        (
            &limit("concurrent = 5"),
            5,
            14,
            "not supported with unit = \"packets\"",
            "unit = \"connections\"",
        ),
        (
            &limit("unit = \"connections\"\nconcurrent = 0"),
            6,
            14,
            "out of range",
            "from 1 to",
        ),
        (
            &limit("unit = \"connections\"\nconcurrent = 5\nrate = \"5/s\""),
            7,
            8,
            "rate conflicts with concurrent",
            "leave out rate",
        ),
        (
            &limit("unit = \"connections\"\nconcurrent = 5\nlevels = []"),
            7,
            10,
            "levels conflicts with concurrent",
            "leave out levels",
        ),
        (
            &limit("unit = \"connections\"\nconcurrent = 5\ndirection = \"egress\""),
            6,
            14,
            "not supported on egress",
            "[[group]]",
        ),
        (
            &limit("unit = \"connections\"\nconcurrent = 5\naction = \"mark\""),
            7,
            10,
            "conflicts with concurrent",
            "\"reject\"",
        ),
        // [[class]].
        (
            "[[class]]\nsources = [\"10.0.0.0/8\"]",
            1,
            1,
            "missing key \"name\" in [[class]]",
            "name = \"payer\"",
        ),
        (
            "[[class]]\nname = \"a\"",
            1,
            1,
            "missing key \"sources\" in [[class]]",
            "sources = ",
        ),
        (
            "[[class]]\nname = \"default\"\nsources = []",
            2,
            8,
            "is reserved",
            "another name",
        ),
        (
            "[[class]]\nname = \"a\"\nsources = []\nmultiplier = 0",
            4,
            14,
            "multiplier",
            "0.000001",
        ),
        (
            "[[class]]\nname = \"a\"\nsources = []\nmultiplier = 2\nunlimited = true",
            4,
            14,
            "conflicts with unlimited",
            "leave out",
        ),
        (
            "[[class]]\nname = \"a\"\nsources = [\"10.0.0.0/8\"]\n[[class]]\nname = \"b\"\nsources = [\"10.0.0.0/8\"]",
            6,
            12,
            "in class \"a\" already",
            "one class",
        ),
        (
            "[[class]]\nname = \"a\"\nsources = []\n[[class]]\nname = \"a\"\nsources = []",
            5,
            8,
            "duplicate class name",
            "another name",
        ),
        // [[limit]].
        (
            "[agent]\ninterfaces = [\"eth0\"]\n[[limit]]\nrate = \"1/s\"",
            3,
            1,
            "missing key \"name\" in [[limit]]",
            "name =",
        ),
        (
            &limit(""),
            3,
            1,
            "missing key \"rate\" in [[limit]]",
            "rate = \"1000/s\"",
        ),
        (
            &limit("rate = 1000"),
            5,
            8,
            "rate is an integer",
            "\"1000/s\"",
        ),
        (&limit("rate = \"1000\""), 5, 8, "missing time", "1000/s"),
        (&limit("rate = \"0/s\""), 5, 8, "rate of 0", "above 0"),
        (
            &limit("rate = \"10MB/s\""),
            5,
            8,
            "counts packets",
            "unit = \"bytes\"",
        ),
        (
            &limit("rate = \"10/s\"\nunit = \"bytes\""),
            5,
            8,
            "requires a unit",
            "10kB/s",
        ),
        (
            &limit("rate = \"100B/s\"\nunit = \"bytes\"\nalgorithm = \"fixed-window\""),
            5,
            8,
            "1514",
            "longer time",
        ),
        (
            "[agent]\nmode = \"observe\"",
            1,
            1,
            "limits nothing",
            "allow_empty = true",
        ),
        ("[[limit]\nname = \"a\"\n[agent\n", 1, 9, "", "TOML syntax"),
        (
            &limit("rate = \"1MB/s\"\nunit = \"bytes\"\nburst = 5000"),
            7,
            9,
            "invalid burst 5000: a burst of bytes requires a unit",
            "256KiB",
        ),
        (
            &limit("rate = \"1MB/s\"\nunit = \"bytes\"\nburst = \"1KiB\""),
            7,
            9,
            "1514",
            "1514B",
        ),
        (
            &limit(&format!("{rate}burst = \"1KiB\"")),
            6,
            9,
            "is a number",
            "burst = 2000",
        ),
        (
            &limit(&format!("{rate}burst = 0")),
            6,
            9,
            "out of range",
            "from 1",
        ),
        (
            &limit(&format!("{rate}prove = true")),
            6,
            9,
            "protocol = \"any\"",
            "protocol = \"tcp\"",
        ),
        (
            &limit(&format!("{rate}protocol = \"tcp\"\nprove = \"alway\"")),
            7,
            9,
            "invalid prove",
            "did you mean \"always\"?",
        ),
        (
            &limit(&format!("{rate}protocol = \"tcp\"\nprove = 1")),
            7,
            9,
            "prove is an integer",
            "prove = true",
        ),
        (
            &limit(&format!(
                "{rate}protocol = \"tcp\"\ndirection = \"egress\"\nprove = true"
            )),
            8,
            9,
            "direction = \"egress\"",
            "leave out prove",
        ),
        (
            &limit(&format!("{rate}burst = 5\nalgorithm = \"fixed-window\"")),
            6,
            9,
            "burst is not supported",
            "leave out burst",
        ),
        (
            &limit(&format!("{rate}protocol = \"icmp\"\nports = [80]")),
            7,
            9,
            "ports is not supported with protocol",
            "leave out ports",
        ),
        (
            &limit(&format!("{rate}ports = [0]")),
            6,
            10,
            "invalid port 0:",
            "from 1 to 65535",
        ),
        (
            &limit(&format!("{rate}ports = [\"90-80\"]")),
            6,
            10,
            "invalid port \"90-80\":",
            "lower first",
        ),
        (
            &limit(&format!("{rate}ports = []")),
            6,
            9,
            "ports is empty",
            "leave ports out",
        ),
        (
            &limit(&format!("{rate}unit = \"connections\"\nprotocol = \"udp\"")),
            6,
            8,
            "\"connections\" is not supported",
            "tcp",
        ),
        (
            &limit(&format!("{rate}unit = \"requests\"\nprotocol = \"icmp\"")),
            6,
            8,
            "\"requests\" is not supported",
            "packets",
        ),
        (
            &limit(&format!("{rate}key = \"class\"\nipv4_prefix = 24")),
            7,
            15,
            "no address",
            "leave out ipv4_prefix",
        ),
        (
            &limit(&format!("{rate}protocol = \"sctp\"")),
            6,
            12,
            "invalid protocol \"sctp\"",
            "one of any, tcp, udp, icmp",
        ),
        (
            &limit(&format!("{rate}action = \"deny\"")),
            6,
            10,
            "invalid action \"deny\"",
            "reject, mark, shape",
        ),
        (
            &limit(&format!("{rate}key = \"sauce\"")),
            6,
            7,
            "invalid key \"sauce\"",
            "did you mean \"source\"?",
        ),
        (
            &limit(&format!("{rate}ipv4_prefix = 33")),
            6,
            15,
            "out of range",
            "from 0 to 32",
        ),
        (
            &limit("rate = \"1025/s\"\nalgorithm = \"sliding-log\""),
            5,
            8,
            "exceeds a sliding log",
            "1024",
        ),
        (
            &limit("rate = \"1MB/s\"\nunit = \"bytes\"\nalgorithm = \"sliding-log\""),
            7,
            13,
            "\"bytes\" is not supported",
            "sliding-window",
        ),
        (
            &limit(&format!(
                "{rate}action = \"shape\"\nalgorithm = \"leaky-bucket\""
            )),
            6,
            10,
            "cannot be delayed",
            "egress",
        ),
        (
            &limit(&format!("{rate}direction = \"egress\"\naction = \"shape\"")),
            7,
            10,
            "has a queue",
            "leaky-bucket",
        ),
        (
            &limit(&format!(
                "{rate}direction = \"egress\"\naction = \"shape\"\nalgorithm = \"leaky-bucket\"\nthrottle = {{ soft = \"5%\" }}"
            )),
            9,
            12,
            "constant rate",
            "leave out throttle",
        ),
        (
            &limit(&format!(
                "{rate}action = \"mark\"\nthrottle = {{ soft = \"5%\" }}"
            )),
            7,
            12,
            "refuses nothing",
            "leave out throttle",
        ),
        (
            &limit(&format!("{rate}action = {{ mark = 7 }}")),
            6,
            19,
            "invalid mark 7:",
            "dscp = 8",
        ),
        (
            &limit(&format!("{rate}action = {{ mark = {{}} }}")),
            6,
            19,
            "empty mark",
            "dscp = 8",
        ),
        (
            &limit(&format!("{rate}action = {{ mark = {{ dscp = 64 }} }}")),
            6,
            28,
            "out of range",
            "from 0 to 63",
        ),
        (
            &limit(&format!("{rate}action = {{ market = 7 }}")),
            6,
            12,
            "market",
            "mark",
        ),
        (
            &limit(&format!("{rate}direction = \"egress\"\nkey = \"source\"")),
            7,
            7,
            "own address",
            "\"destination\"",
        ),
        (
            &limit(&format!("{rate}key = \"destination\"")),
            6,
            7,
            "own address",
            "\"source\"",
        ),
        (
            &limit(&format!("{rate}throttle = {{ elastic = 3 }}")),
            6,
            24,
            "invalid elastic 3:",
            "up_to = 3.0",
        ),
        (
            &limit(&format!(
                "{rate}throttle = {{ elastic = {{ up_to = 1.0 }} }}"
            )),
            6,
            34,
            "invalid up_to 1:",
            "up_to = 3.0",
        ),
        (
            &limit(&format!("{rate}throttle = {{ elastic = {{ }} }}")),
            6,
            24,
            "missing key \"up_to\"",
            "3.0",
        ),
        (
            "[agent]\ninterfaces = [\"eth0\"]\nattach = \"native\"\n[[limit]]\nname = \"a\"\nrate = \"1/s\"\naction = \"mark\"",
            5,
            8,
            "XDP cannot mark",
            "attach = \"auto\"",
        ),
        (
            &limit(&format!("{rate}tiers = [\"10/s\"]")),
            6,
            10,
            "duplicate rate",
            "leave out one",
        ),
        (
            &limit(&format!(
                "{rate}tiers = [\"1/s\", \"2/s\", \"3/s\", \"4/s\", \"5/s\", \"6/s\", \"7/s\"]"
            )),
            6,
            9,
            "8 rates",
            "at most 7",
        ),
        (
            &limit(&format!("{rate}throttle = \"soft\"")),
            6,
            12,
            "invalid throttle \"soft\"",
            "soft = \"10%\"",
        ),
        (
            &limit(&format!("{rate}throttle = {{ soft = \"0%\" }}")),
            6,
            21,
            "invalid share",
            "above 0",
        ),
        (
            "[[limit]]\nname = \"a\"\nrate = \"1/s\"",
            1,
            1,
            "missing interfaces",
            "interfaces =",
        ),
        (
            &format!(
                "{}[[limit]]\nname = \"a\"\nrate = \"1/s\"",
                limit("rate = \"1/s\"")
            ),
            7,
            8,
            "duplicate limit name",
            "another name",
        ),
        (
            &limit(&format!("{rate}cluster = true")),
            4,
            8,
            "has cluster, and table [cluster] is missing",
            "add [cluster]",
        ),
        (
            "[cluster]",
            1,
            1,
            "missing key \"store\" in [cluster]",
            "redis://",
        ),
    ] {
        let report = check(text)
            .err()
            .unwrap_or_else(|| panic!("{text} is not wrong"));
        let found = report.errors.iter().any(|error| {
            error.line == line
                && error.column == column
                && error.message.contains(message)
                && error.help.contains(help)
        });
        assert!(
            found,
            "{text}\nwanted {line}:{column} {message} / {help}, got\n{:#?}",
            report.errors
        );
    }
}

#[test]
fn all_errors_of_a_file_are_reported_in_order_of_position() {
    let report = check(
        "[agent]\ninterfaces = [\"eth0\"]\nmode = \"x\"\nmax_sources = \"a\"\nfoo = 1\n\
         [[limit]]\nname = \"a\"\nrate = \"0/s\"\nburst = 0\nprotocol = \"icmp\"\nports = [0]\n\
         [[limit]]\nname = \"a\"\nrate = \"10MB/s\"\nipv4_prefix = 99\n[group]\n",
    )
    .unwrap_err();
    let lines: Vec<usize> = report.errors.iter().map(|error| error.line).collect();
    assert_eq!(lines, [3, 4, 5, 8, 9, 11, 11, 13, 14, 15, 16]);
    let text = report.to_string();
    assert!(
        text.contains("limits.toml:3:8") && text.contains("11 errors; nothing was changed"),
        "{text}"
    );
}

#[test]
fn probable_mistakes_are_warnings() {
    for (text, message) in [
        ("[agent]\nallow_empty = true\nnever_limit = [\"0.0.0.0/0\"]".to_owned(), "nothing will be limited"),
        ("[agent]\nallow_empty = true\nnever_limit = [\"::/0\"]".to_owned(), "nothing will be limited"),
        (
            "[agent]\nallow_empty = true\nnever_limit = [\"10.0.0.0/8\"]\n[[class]]\nname = \"a\"\nsources = [\"10.1.0.0/16\"]".to_owned(),
            "class \"a\" has no effect",
        ),
        (limit("rate = \"1000000/s\"\nburst = 1"), "less than"),
        (
            limit("rate = \"1/s\"\naction = \"observe\"").replace("[[limit]]", "mode = \"observe\"\n[[limit]]"),
            "the agent's mode is observe",
        ),
        (limit("unit = \"connections\"\nconcurrent = 5\nkey = \"all\""), "forged SYNs"),
        (limit("unit = \"connections\"\nconcurrent = 5\nkey = \"asn\"").replace("[agent]", "[geo]\nasn = \"/a\"\n[agent]"), "forged SYNs"),
        (
            limit("unit = \"connections\"\nconcurrent = 5\nescalate = { after = 9, within = \"9s\", ban = \"9m\" }"),
            "senders can forge",
        ),
    ] {
        let loaded = check(&text).unwrap_or_else(|report| panic!("{text}: {report}"));
        assert!(
            loaded.warnings.iter().any(|warning| warning.message.contains(message)),
            "{text}: {:?}",
            loaded.warnings
        );
    }
}

#[test]
fn names_have_one_rule() {
    let limit = "[[limit]]\nname = \"a\"\nrate = \"1/s\"\n";
    let configs: [(&str, String); 5] = [
        ("limit", "[[limit]]\nname = NAME\nrate = \"1/s\"\n".to_owned()),
        (
            "limit",
            "[[limit]]\nname = NAME\nscope = \"request\"\nkey = [\"user\"]\nunit = \"requests\"\nrate = \"1/s\"\n"
                .to_owned(),
        ),
        (
            "class",
            format!("{limit}[[class]]\nname = NAME\nsources = [\"192.0.2.1\"]\nmultiplier = 2\n"),
        ),
        (
            "request",
            format!("{limit}[[request]]\nname = NAME\ncost = \"2\"\n"),
        ),
        (
            "group",
            format!("{limit}[[group]]\nname = NAME\nmatch = [{{ exe = \"/usr/bin/a\" }}]\npids = 5\n"),
        ),
    ];
    for (what, text) in configs {
        let checked = |name: &str| {
            let text = text.replace("NAME", &format!("\"{name}\""));
            check(&format!("[agent]\ninterfaces = [\"eth0\"]\n{text}"))
        };
        let errors = |name: &str| -> Vec<String> {
            let report = checked(name).err();
            let errors = report.into_iter().flat_map(|report| report.errors);
            errors.map(|error| error.message).collect()
        };
        assert_eq!(errors(&"n".repeat(64)), Vec::<String>::new(), "{what}");
        assert_eq!(errors(""), [format!("empty name of a {what}")]);
        let long = "n".repeat(65);
        let quoted = format!("{:?}", human::cut(&long, 64));
        for (name, quoted) in [
            (long.as_str(), quoted.as_str()),
            ("a\\tb", "\"a\\tb\""),
            ("a\\u007F", "\"a\\u{7f}\""),
        ] {
            assert_eq!(errors(name), [format!("invalid name of a {what} {quoted}")]);
        }
    }
}
