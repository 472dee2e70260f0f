//! Limits whose sources prove their address by the kernel's SYN cookies, and the setting that they depend on.

use config::policy::{Config, Limit, Mode, Prove};
use host::{StateDirectory, syn_cookies};

/// Limits whose sources prove their address by cookies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Proving {
    /// Their names.
    pub limits: Vec<String>,
    /// Whether one has `prove = "always"`.
    pub always: bool,
    /// SYNs that were answered so far, of all limits together.
    pub answered: u64,
    /// Those whose source has proven its address.
    pub accepted: u64,
    /// Of these, the ones that passed.
    pub passed: u64,
}

impl Proving {
    /// Without counters; `None` if no limit proves.
    pub fn of_config(config: &Config) -> Option<Self> {
        let proving: Vec<&Limit> = config
            .limits
            .iter()
            .filter(|limit| limit.proves_by_cookies())
            .collect();
        if proving.is_empty() || config.agent.mode == Mode::Observe {
            return None;
        }
        Some(Self {
            limits: proving.iter().map(|limit| limit.name.clone()).collect(),
            always: proving
                .iter()
                .any(|limit| limit.prove == Some(Prove::Always)),
            ..Self::default()
        })
    }

    /// A note for the operator about the kernel's setting.
    pub fn note(&self, directory: &StateDirectory) -> Option<String> {
        let setting = syn_cookies::SETTING;
        match (syn_cookies::current(), syn_cookies::before(directory)) {
            (None, _) => Some(
                "prove has no effect: the kernel has no SYN cookies (CONFIG_SYN_COOKIES)"
                    .to_owned(),
            ),
            (Some(0), _) => Some(format!(
                "prove has no effect: {setting} is 0; run sysctl {setting}=1"
            )),
            (Some(syn_cookies::ALWAYS), Some(before)) if !self.always => Some(format!(
                "{setting} is 2 while forged SYNs arrive; it was {before}"
            )),
            // Else the agent sets it within a second.
            (Some(value), _)
                if self.always && value != syn_cookies::ALWAYS && !syn_cookies::is_writable() =>
            {
                Some(format!(
                    "prove = \"always\" is in effect only while a listener's queue is full: {setting} is {value}; run \
                     sysctl {setting}=2"
                ))
            }
            _ => None,
        }
    }
}
