//! The agent's life: what it tells, leaves, takes over and refuses to do.

use nix::sys::signal::Signal;
use testbed::tests;
use testbed::trials::Test;

use crate::foreign::Place;
use crate::support::{INTERFACE, Network};
use crate::traffic::{LIMIT, PORT, burst, udp_from};

pub const TESTS: &[Test] = tests![
    the_documents_have_the_fields_of_the_interface,
    limits_stay_in_effect_without_an_agent_and_the_next_takes_over,
    detaching_leaves_nothing,
    detach_is_refused_while_an_agent_runs,
    a_start_that_fails_is_one_message_and_leaves_nothing,
    a_driver_without_native_xdp_is_reported_and_generic_opt_in,
    a_root_without_capabilities_gets_their_names,
    reset_gives_a_source_its_whole_allowance,
];

/// The only test for kernels that are too old.
pub const ON_OLD_KERNELS: &[Test] =
    tests![a_kernel_that_is_too_old_is_refused_in_plain_words_and_left_alone,];

fn the_documents_have_the_fields_of_the_interface() {
    let network = Network::new();
    let agent = network.start("", LIMIT);
    burst(&network, &[udp_from(7)], 300);
    let status = agent.json(&["status"]);
    for field in [
        "version",
        "mode",
        "uptime_seconds",
        "config",
        "interfaces",
        "totals",
        "sources",
    ] {
        assert!(status.get(field).is_some(), "status has no {field}");
    }
    let attached = serde_json::json!([
        { "name": INTERFACE, "attach": "native", "state": "attached", "enforced_by": [], "reason": null }
    ]);
    assert_eq!(status["interfaces"], attached);
    for field in [
        "passed_packets",
        "passed_bytes",
        "throttled_packets",
        "throttled_bytes",
    ] {
        assert!(
            status["totals"][field].as_u64().unwrap() > 0,
            "totals has no {field}"
        );
    }
    for field in ["tracked", "capacity", "evicted"] {
        assert!(status["sources"][field].is_u64(), "sources has no {field}");
    }
    let limit = agent.limit("packets");
    for field in [
        "name",
        "direction",
        "key",
        "unit",
        "algorithm",
        "rate",
        "burst",
        "keys",
    ] {
        assert!(limit.get(field).is_some(), "a limit has no {field}");
    }
    for field in ["passed", "throttled", "would_throttle"] {
        assert!(
            limit[field]["packets"].is_u64() && limit[field]["bytes"].is_u64(),
            "a limit has no {field}"
        );
    }
    let shown = agent.json(&["show", "10.77.0.7"]);
    for field in ["source", "class", "never_limit", "ban", "limits"] {
        assert!(shown.get(field).is_some(), "show has no {field}");
    }
    for field in [
        "name",
        "remaining",
        "retry_after_seconds",
        "passed_packets",
        "throttled_packets",
    ] {
        assert!(
            shown["limits"][0].get(field).is_some(),
            "a limit of show has no {field}"
        );
    }
    for field in ["source", "limit", "passed_packets", "throttled_packets"] {
        assert!(
            agent.json(&["top", "--once"])[0].get(field).is_some(),
            "top has no {field}"
        );
    }
    for arguments in [
        &["status"][..],
        &["limits"],
        &["top", "--once"],
        &["show", "10.77.0.7"],
    ] {
        let table = String::from_utf8(network.command(arguments).stdout).unwrap();
        assert!(table.lines().count() >= 2, "{arguments:?} printed {table}");
    }
}

fn limits_stay_in_effect_without_an_agent_and_the_next_takes_over() {
    let network = Network::new();
    let limit = "[[limit]]\nname = \"packets\"\nrate = \"1/h\"\nburst = 100\n";
    let agent = network.start("", limit);
    let receiver = network.receiver(PORT);
    burst(&network, &[udp_from(7)], 60);
    let (said, status) = agent.stop(Signal::SIGKILL);
    assert!(!status.success() && said.contains("enforcing"), "{said}");
    burst(&network, &[udp_from(7)], 60);
    assert_eq!(receiver.counts()[7], 100);
    // The next agent forgets nothing.
    let agent = network.start("", limit);
    burst(&network, &[udp_from(7)], 60);
    assert_eq!(receiver.counts()[7], 0);
    assert_eq!(
        agent.json(&["show", "10.77.0.7"])["limits"][0]["remaining"],
        0
    );
    let (said, status) = agent.stop(Signal::SIGTERM);
    assert!(
        status.success() && said.contains("stay in effect"),
        "{said}"
    );
    assert!(network.has_program());
    let config = network.config("", limit);
    let output = network.command(&["detach", "--config", config.to_str().unwrap()]);
    assert!(output.status.success());
    assert!(!network.has_program() && !network.has_pins());
}

fn detaching_leaves_nothing() {
    let network = Network::new();
    let agent = network.start("on_exit = \"detach\"", LIMIT);
    assert!(network.has_program() && network.has_pins());
    let (said, status) = agent.stop(Signal::SIGINT);
    assert!(
        status.success() && said.contains("no longer in effect"),
        "{said}"
    );
    assert!(!network.has_program() && !network.has_pins());
}

fn detach_is_refused_while_an_agent_runs() {
    let network = Network::new();
    let agent = network.start(
        "",
        "[[limit]]\nname = \"packets\"\nrate = \"1/h\"\nburst = 10\n",
    );
    let config = network.config("", LIMIT);
    let output = network.command(&["detach", "--config", config.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code() == Some(1) && said.contains("stop it first"),
        "{said}"
    );
    let receiver = network.receiver(PORT);
    burst(&network, &[udp_from(7)], 60);
    assert_eq!(receiver.counts()[7], 10);
    assert_eq!(
        agent.json(&["status"])["interfaces"][0]["state"],
        "attached"
    );
}

fn a_start_that_fails_is_one_message_and_leaves_nothing() {
    let network = Network::new();
    let told = |output: std::process::Output, code: i32, message: &str| {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains(message), "{said}");
        assert!(!said.contains("panicked"), "{said}");
    };
    // A config that is wrong: nothing is touched.
    let config = network.config("mod = \"observe\"", LIMIT);
    told(network.run_to_end(&config), 2, "did you mean \"mode\"?");
    assert!(!network.has_pins() && !network.has_program());
    told(
        network.run_to_end(std::path::Path::new("/nonexistent/limits.toml")),
        2,
        "/nonexistent/limits.toml",
    );
    // Pins where no BPF file system is.
    let config = network.config("", LIMIT);
    let wrong = std::fs::read_to_string(&config)
        .unwrap()
        .replace("/sys/fs/bpf/weir-t", "/tmp/weir-t");
    std::fs::write(&config, &wrong).unwrap();
    told(network.run_to_end(&config), 1, "BPF file system");
    let place = wrong
        .lines()
        .find_map(|line| line.strip_prefix("pins = "))
        .unwrap()
        .trim_matches('"')
        .to_owned();
    std::fs::remove_dir(place).unwrap();
    // A hook that somebody else has taken, and no other one allowed.
    let foreign = network.attach_foreign(Place::Xdp);
    told(
        network.run_to_end(&network.config("attach = \"native\"", LIMIT)),
        1,
        "another program is attached to the XDP hook",
    );
    assert!(!network.has_pins());
    drop(foreign);
    let agent = network.start("", LIMIT);
    // A second agent with the same socket.
    let config = network.config("", LIMIT);
    told(network.run_to_end(&config), 1, "another agent is running");
    burst(&network, &[udp_from(7)], 10);
    assert_eq!(agent.counts("packets").0, 10, "the first agent goes on");
    drop(agent);
    // Nobody answers.
    let output = network.command(&["status"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("no agent replies"));
    // No privileges: as nobody, with a config that nobody can read and a place that nobody may write.
    let config = network.config("", LIMIT);
    std::fs::set_permissions(
        network.folder.path(),
        std::os::unix::fs::PermissionsExt::from_mode(0o777),
    )
    .unwrap();
    let output = network.in_server(|| {
        let _ = std::fs::remove_file(network.control());
        use std::os::unix::process::CommandExt;
        std::process::Command::new(std::env::var_os("WEIR_AGENT").unwrap())
            .arg("--config")
            .arg(&config)
            .uid(65534)
            .gid(65534)
            .output()
    });
    told(output.unwrap(), 1, "run as root");
}

fn a_driver_without_native_xdp_is_reported_and_generic_opt_in() {
    let network = Network::new();
    // The loopback device has no native XDP.
    let config = network.config("attach = \"native\"", LIMIT);
    let text = std::fs::read_to_string(&config)
        .unwrap()
        .replace(INTERFACE, "lo");
    std::fs::write(&config, text).unwrap();
    let output = network.run_to_end(&config);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("native XDP is not supported") && said.contains("attach = \"auto\""),
        "{said}"
    );
    assert!(!network.has_pins(), "something was left behind");
    let agent = network.start("attach = \"generic\"", &LIMIT.replace("1000/s", "1/h"));
    assert_eq!(
        agent.json(&["status"])["interfaces"][0]["attach"],
        "generic"
    );
    burst(&network, &[udp_from(7)], 150);
    assert_eq!(agent.counts("packets"), (100, 50));
    // The mode is the operator's choice at each start, and what is told is what is so.
    drop(agent);
    let agent = network.start("attach = \"native\"", LIMIT);
    assert_eq!(agent.json(&["status"])["interfaces"][0]["attach"], "native");
}

fn a_root_without_capabilities_gets_their_names() {
    use std::os::unix::process::CommandExt;
    const CAP_NET_ADMIN: libc::c_ulong = 12;
    const CAP_SYS_ADMIN: libc::c_ulong = 21;
    const CAP_BPF: libc::c_ulong = 39;
    let fails_without = |network: &Network, dropped: &'static [libc::c_ulong]| {
        let config = network.config("", &LIMIT.replace("packets", "other"));
        let mut command = std::process::Command::new(std::env::var_os("WEIR_AGENT").unwrap());
        command.arg("--config").arg(&config);
        // SAFETY: between fork and exec, a system call that touches no memory.
        unsafe {
            command.pre_exec(move || {
                for capability in dropped {
                    if libc::prctl(libc::PR_CAPBSET_DROP, *capability, 0, 0, 0) != 0 {
                        return Err(std::io::Error::last_os_error());
                    }
                }
                Ok(())
            });
        }
        let output = network.in_server(|| command.output()).unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(
            said.contains("CAP_BPF") && said.contains("CAP_NET_ADMIN"),
            "{said}"
        );
    };
    for dropped in [
        &[CAP_NET_ADMIN, CAP_SYS_ADMIN][..],
        &[CAP_BPF, CAP_SYS_ADMIN],
    ] {
        let network = Network::new();
        fails_without(&network, dropped);
        assert!(
            !network.has_pins() && !network.has_program(),
            "something was left behind"
        );
        // The limits of an earlier agent stay in effect, whether or not the next one starts.
        let agent = network.start("", &LIMIT.replace("1000/s", "1/h"));
        let receiver = network.receiver(PORT);
        agent.stop(Signal::SIGKILL);
        fails_without(&network, dropped);
        assert!(network.has_program());
        burst(&network, &[udp_from(7)], 150);
        assert_eq!(receiver.counts()[7], 100);
    }
}

fn a_kernel_that_is_too_old_is_refused_in_plain_words_and_left_alone() {
    let network = Network::new();
    let output = network.run_to_end(&network.config("", LIMIT));
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("Weir needs Linux 5.15 or newer") && !said.contains("fault in Weir"),
        "{said}"
    );
    assert!(
        !network.has_pins() && !network.has_program(),
        "something was left behind"
    );
}

fn reset_gives_a_source_its_whole_allowance() {
    let network = Network::new();
    let agent = network.start(
        "",
        "[[limit]]\nname = \"packets\"\nrate = \"1/h\"\nburst = 10\n",
    );
    burst(&network, &[udp_from(7)], 30);
    assert_eq!(agent.counts("packets"), (10, 20));
    assert_eq!(agent.json(&["reset", "10.77.0.7"])["forgotten"], 1);
    assert_eq!(
        agent.json(&["show", "10.77.0.7"])["limits"][0]["remaining"],
        10
    );
    burst(&network, &[udp_from(7)], 30);
    assert_eq!(agent.counts("packets"), (20, 40));
}
