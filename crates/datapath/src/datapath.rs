//! A policy in the kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use api::interface::AttachMode;
use aya::maps::Array;
use aya::{Ebpf, EbpfLoader};
use bpf::objects::WEIR;
use common::bank::Bank;
use common::packet::Direction;
use common::proof::TRANSLATED;
use common::rule::{Enforcement, Rule};
use common::settings::{Runtime, Settings, TableIdentity};
use common::share::Share;
use host::clock;

use crate::buffers;
use crate::compile::Image;
use crate::connections::{self, Connections};
use crate::devices::device::Interface;
use crate::error::LoadError;
use crate::hooks::attached::Attached;
use crate::hooks::pins::{self, PinDirectory};
use crate::hooks::trouble::Trouble;
use crate::maps::access::{array_of, map, map_mut};
use crate::maps::bans::Bans;
use crate::maps::capture::CaptureRings;
use crate::maps::events::EventRing;
use crate::maps::lists::{self, ListMap};
use crate::maps::offered::OfferedRing;
use crate::maps::own::OwnAddresses;
use crate::maps::record::RecordMaps;
use crate::maps::rings;
use crate::maps::rows::{Rows, Writings};
use crate::maps::size::{self, MOST_BANS, RING_BYTES, SAMPLES};
use crate::maps::stream::StreamRings;
use crate::maps::trace::{self, TraceRing};
use crate::maps::{policy, text};
use crate::table::place::{TablePlace, text_of};
use crate::table::sources::Sources;
use crate::translations::Translations;

/// A loaded policy and where it is attached.
pub struct Datapath {
    pub(crate) ebpf: Ebpf,
    pub(crate) image: Image,
    pub(crate) settings: Settings,
    pub(crate) rows: Rows,
    pub(crate) writings: Arc<Writings>,
    /// As it was last written.
    runtime: Runtime,
    /// The shares of limits with `cluster`, and whether nothing is refused, by the limit's index in the config.
    shares: BTreeMap<usize, (Share, bool)>,
    events: Arc<EventRing>,
    record: Arc<RecordMaps>,
    capture: Arc<CaptureRings>,
    stream: Arc<StreamRings>,
    pub(crate) offered: Arc<OfferedRing>,
    trace: Option<TraceRing>,
    connections: Option<Connections>,
    pub(crate) attached: Vec<Attached>,
    /// The addresses in the kernel's map.
    own: OwnAddresses,
    /// The ports in the kernel's map whose connections go elsewhere.
    translated: Translations,
    /// Those that the last call has added.
    new_translated: BTreeSet<u16>,
    pub(crate) troubles: Vec<Trouble>,
    /// Until when a change waits for hooks that links of before still have.
    pub(crate) released_by: OnceLock<Instant>,
    pub(crate) pins: PinDirectory,
}

impl Datapath {
    /// Loads `image` into the kernel: with the pinned table if it has the image's shape and layout, else with an empty
    /// one. [`Datapath::attach`] then puts it in effect.
    ///
    /// # Errors
    ///
    /// As [`Datapath::load_at`].
    pub fn load(image: Image, pins: &PinDirectory) -> Result<Self, LoadError> {
        Self::load_object(WEIR, image, pins)
    }

    /// The same with another object than the embedded one.
    ///
    /// # Errors
    ///
    /// As [`Datapath::load_at`].
    pub fn load_object(
        object: &[u8],
        image: Image,
        pins: &PinDirectory,
    ) -> Result<Self, LoadError> {
        let before = pins.before()?.ok();
        let place = pins.place(&image.settings, before.as_ref())?;
        let datapath = Self::load_or_clear(object, image, pins, &place)?;
        pins.commit()?;
        pins.finish()?;
        Ok(datapath)
    }

    /// Loads `image` into the kernel, with the table at `place`, which is created if it does not exist.
    ///
    /// # Errors
    ///
    /// When a kernel feature or capability is missing, or the verifier rejects a program; the caller then removes the pins.
    pub fn load_at(
        image: Image,
        pins: &PinDirectory,
        place: &TablePlace,
    ) -> Result<Self, LoadError> {
        Self::load_on(WEIR, image, pins, place)
    }

    fn load_or_clear(
        object: &[u8],
        image: Image,
        pins: &PinDirectory,
        place: &TablePlace,
    ) -> Result<Self, LoadError> {
        let loaded = Self::load_on(object, image, pins, place);
        if loaded.is_err() {
            pins.clear_unless_linked();
        }
        loaded
    }

    fn load_on(
        object: &[u8],
        image: Image,
        pins: &PinDirectory,
        place: &TablePlace,
    ) -> Result<Self, LoadError> {
        if object.is_empty() {
            return Err(LoadError::NoObject);
        }
        let mut settings = image.settings;
        settings.seed = place.seed();
        let rows_of_bank = size::rows_of_bank(&image);
        settings.source_index_bits = size::source_index_bits(&image);
        settings.lines_of_bank = size::lines_of_bank(&image);
        settings.multi_buffer = u32::from(kernel_has_multi_buffer());
        if settings.is_generic != 0 {
            settings.buffer_layout = buffers::layout();
        }
        // Before the packet path, which shares its maps.
        let connections = Connections::start(&image, pins)?;
        let ports = if image.ports.is_empty() {
            1
        } else {
            image.ports.len() as u32
        };
        let rings = settings
            .shape
            .all_slots()
            .saturating_mul(settings.ring_words)
            .max(1);
        let layout = text_of(&image.layout);
        let log_level = trace::level();
        let cpus = rings::cpus();
        let mut loader = EbpfLoader::new();
        loader
            .override_global("SETTINGS", &settings, true)
            // Only in a trace build.
            .override_global(aya_log::LEVEL, &log_level, false)
            .map_max_entries("AYA_LOGS", trace::RING_BYTES)
            .map_max_entries("RULES", (Bank::COUNT * rows_of_bank).max(1))
            .map_max_entries("PORTS", ports)
            .map_max_entries("SCOPES", (image.scopes.len() as u32).max(1))
            .map_max_entries("INTERFACES", size::interfaces(&image))
            .map_max_entries("MARKS", (image.marks.len() as u32).max(1))
            .map_max_entries("PREFIXES", (Bank::COUNT * settings.lines_of_bank).max(1))
            .map_max_entries("BANS", MOST_BANS)
            .map_max_entries("SOURCES", settings.shape.elements())
            .map_max_entries("RINGS", rings)
            .map_max_entries("COUNTERS", image.counters())
            .map_max_entries("SAMPLES", SAMPLES)
            .map_max_entries("RECORD_EVEN", size::recorded(&image))
            .map_max_entries("RECORD_ODD", size::recorded(&image))
            .map_max_entries("CAPTURE", cpus)
            .map_max_entries("STREAM", cpus)
            .map_max_entries("OWN", size::own_addresses(&settings))
            .map_max_entries("COOKIE_PORTS", size::cookie_ports(&settings))
            .map_max_entries(pins::PROVEN_SOURCES, size::proven_sources(&settings))
            .map_max_entries("LAYOUT", text::chunks(&layout))
            .map_max_entries("EVENTS", RING_BYTES)
            .map_max_entries("OFFERED", size::offered(&settings));
        connections::configure(&mut loader, &image, pins);
        for map in pins::SHARED_MAPS {
            loader.map_pin_path(map, place.map(map));
        }
        loader.map_pin_path(pins::BANS, pins.map(pins::BANS));
        loader.map_pin_path(pins::LISTS, pins.map(pins::LISTS));
        if settings.prove_in_use & Settings::BY_RESETS != 0 {
            loader.map_pin_path(pins::PROVEN_SOURCES, pins.map(pins::PROVEN_SOURCES));
        }
        let direction = if settings.is_egress != 0 {
            Direction::Egress
        } else {
            Direction::Ingress
        };
        for (map, path) in place
            .generation()
            .iter()
            .flat_map(|generation| generation.maps(direction))
        {
            loader.map_pin_path(map, path);
        }
        let mut ebpf = loader.load(object).map_err(LoadError::from_aya)?;
        policy::write(&mut ebpf, &image)?;
        let rows = Rows::map(array_of(&ebpf, "RULES")?, rows_of_bank as usize)?;
        policy::write_bank(&ebpf, &rows, Bank::FIRST, settings.lines_of_bank, &image)?;
        let mut table = Array::<_, TableIdentity>::try_from(map_mut(&mut ebpf, "TABLE")?)?;
        table.set(0, TableIdentity::of(&settings), 0)?;
        text::write(map_mut(&mut ebpf, "LAYOUT")?, &layout)?;
        let events = Arc::new(EventRing::take(&mut ebpf)?);
        let record = Arc::new(RecordMaps::take(&mut ebpf)?);
        let capture = Arc::new(CaptureRings::take(&mut ebpf)?);
        let stream = Arc::new(StreamRings::take(&mut ebpf)?);
        let offered = Arc::new(OfferedRing::take(&mut ebpf)?);
        let trace = TraceRing::take(&mut ebpf)?;
        let mut datapath = Self {
            ebpf,
            image,
            settings,
            rows,
            writings: Arc::default(),
            runtime: Runtime::default(),
            shares: Default::default(),
            events,
            record,
            capture,
            stream,
            offered,
            trace,
            connections,
            attached: Vec::new(),
            own: OwnAddresses::default(),
            translated: Translations::new(),
            new_translated: BTreeSet::new(),
            troubles: Vec::new(),
            released_by: OnceLock::new(),
            pins: pins.clone(),
        };
        let mut runtime = Runtime::default();
        runtime.roots[Bank::FIRST.number() as usize] = datapath.image.roots;
        datapath.write_runtime(runtime)?;
        Ok(datapath)
    }

    /// The ring of events about refused sources.
    #[must_use]
    pub fn events(&self) -> &Arc<EventRing> {
        &self.events
    }

    /// The counters of recorded sources.
    #[must_use]
    pub fn record(&self) -> &Arc<RecordMaps> {
        &self.record
    }

    /// The rings of captured packets.
    #[must_use]
    pub fn capture(&self) -> &Arc<CaptureRings> {
        &self.capture
    }

    /// The rings of the sources of sampled packets.
    #[must_use]
    pub fn stream(&self) -> &Arc<StreamRings> {
        &self.stream
    }

    /// The open connections, if some limit counts them.
    #[must_use]
    pub const fn connections(&self) -> Option<&Connections> {
        self.connections.as_ref()
    }

    /// Counts the connections that exist and are not counted yet, and forgets the counts of other policies. Returns how
    /// many were not counted.
    ///
    /// # Errors
    ///
    /// When the kernel's sockets or maps cannot be read.
    pub fn count_connections(&mut self) -> Result<usize, LoadError> {
        self.remove_unused_pins()?;
        match (&mut self.connections, self.attached.first()) {
            (Some(connections), Some(interface)) => connections.begin(&self.image, interface),
            _ => Ok(0),
        }
    }

    /// Removes the counts of connections of all policies but this one, and what was proven to others.
    ///
    /// # Errors
    ///
    /// When a pin cannot be removed.
    pub fn remove_unused_pins(&self) -> Result<(), LoadError> {
        if self.settings.prove_in_use & Settings::BY_RESETS == 0 {
            self.pins.forget_proven_sources()?;
        }
        self.pins.forget_connections(Some(&self.image))
    }

    /// The periodic work for open connections.
    ///
    /// # Errors
    ///
    /// As [`Datapath::count_connections`].
    pub fn follow_connections(&mut self) -> Result<(), LoadError> {
        match (&mut self.connections, self.attached.first()) {
            (Some(connections), Some(interface)) => connections.follow(&self.image, interface),
            _ => Ok(()),
        }
    }

    /// The log of verdicts, if the programs are of a trace build.
    #[must_use]
    pub const fn trace(&self) -> Option<&TraceRing> {
        self.trace.as_ref()
    }

    /// Maps the table of sources. The pages of a mapped table count as the agent's own memory until it is dropped.
    ///
    /// # Errors
    ///
    /// When it cannot be mapped.
    pub fn sources(&self) -> Result<Sources, LoadError> {
        Sources::map(
            array_of(&self.ebpf, "SOURCES")?,
            array_of(&self.ebpf, "RINGS")?,
            self.settings,
        )
    }

    /// The policy that was loaded.
    #[must_use]
    pub fn image(&self) -> &Image {
        &self.image
    }

    /// The constants of the loaded programs.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Updates the settings that change while a policy is in effect, in one map write.
    ///
    /// # Errors
    ///
    /// When the map cannot be written.
    pub fn set_runtime(&mut self, runtime: Runtime) -> Result<(), LoadError> {
        self.write_runtime(Runtime {
            bank: self.runtime.bank,
            roots: self.runtime.roots,
            ..runtime
        })
    }

    /// The bank in effect.
    pub(crate) const fn bank(&self) -> Bank {
        Bank::from_setting(self.runtime.bank)
    }

    fn write_runtime(&mut self, runtime: Runtime) -> Result<(), LoadError> {
        let runtime = runtime.with_taps();
        let mut map = Array::<_, Runtime>::try_from(map_mut(&mut self.ebpf, "RUNTIME")?)?;
        map.set(0, runtime, 0)?;
        self.runtime = runtime;
        Ok(())
    }

    /// Enforces a share of a limit, given by its index in the config, from the next packet on. With `is_open`, nothing
    /// is refused.
    pub fn set_share(&mut self, limit: usize, share: Share, is_open: bool) {
        let first = self.rows.first_of(self.bank());
        for (row, rule) in self.image.rules.iter().enumerate() {
            if self.image.limit_of_row(row) == Some(limit) {
                self.rows
                    .replace(first + row, &at_share(rule, share, is_open));
            }
        }
        self.shares.insert(limit, (share, is_open));
    }

    /// Whether the loaded programs can evaluate `image`, which differs at most in rules and prefixes, and are in effect on
    /// exactly these interfaces.
    #[must_use]
    pub fn can_switch_to(&self, image: &Image, devices: &[Interface]) -> bool {
        self.image.differs_in_bank_only(image)
            && image.rules.len() <= self.rows.of_bank()
            && image.prefixes.len() <= self.settings.lines_of_bank as usize
            && self.attached.len() == devices.len()
            && devices
                .iter()
                .all(|device| self.in_effect_on(device).is_some())
    }

    /// Writes `image` into the bank that is not in effect, with the present shares of limits. No packet may still be
    /// evaluated by that bank.
    ///
    /// # Errors
    ///
    /// When a map cannot be written; then the policy in effect is unchanged.
    pub fn write_other_bank(&mut self, image: &Image) -> Result<(), LoadError> {
        let bank = self.bank().other();
        self.writings.begin(bank);
        policy::write_bank(
            &self.ebpf,
            &self.rows,
            bank,
            self.settings.lines_of_bank,
            image,
        )?;
        let first = self.rows.first_of(bank);
        for (row, rule) in image.rules.iter().enumerate() {
            if let Some((share, is_open)) = image
                .limit_of_row(row)
                .and_then(|limit| self.shares.get(&limit))
            {
                self.rows
                    .write(first + row, &[at_share(rule, *share, *is_open)]);
            }
        }
        // Fair limits stay as the controller last set them.
        let in_effect = self.rows.first_of(self.bank());
        let both = self.image.rules.iter().zip(&image.rules).enumerate();
        for (row, _) in both.filter(|(_, (old, new))| old.is_fair() && new.is_fair()) {
            let words = self.rows.fair(in_effect + row);
            self.rows.set_fair(first + row, words);
        }
        let mut runtime = self.runtime;
        runtime.roots[bank.number() as usize] = image.roots;
        self.write_runtime(runtime)
    }

    /// Puts the other bank in effect, to which `image` was written, by one map write. Returns the image before.
    ///
    /// # Errors
    ///
    /// When the map cannot be written; then the policy in effect is unchanged.
    pub fn switch_to(&mut self, image: Image) -> Result<Image, LoadError> {
        self.write_runtime(Runtime {
            bank: self.bank().other().number(),
            ..self.runtime
        })?;
        Ok(std::mem::replace(&mut self.image, image))
    }

    /// A row of rules as the kernel enforces it, by its index in the image.
    #[must_use]
    pub fn rule_in_effect(&self, row: usize) -> Option<Rule> {
        let rule = self.image.rules.get(row)?;
        if rule.is_fair() {
            let now = self.settings.scale.ticks(clock::monotonic_nanoseconds());
            return Some(rule.at_level(self.fair_level(row, now)));
        }
        let share = self.shares.get(&self.image.limit_of_row(row)?);
        Some(share.map_or(*rule, |(share, _)| rule.at_share(*share)))
    }

    /// Whether the programs reply to packets: a limit has `action = "reject"` or `prove`.
    #[must_use]
    pub const fn replies(&self) -> bool {
        self.settings.reject_in_use != 0 || self.settings.prove_in_use != 0
    }

    /// A note about frames that cannot be answered by challenges: XDP does not see tags that a driver removed.
    #[must_use]
    pub fn reset_note(&self) -> Option<String> {
        let by_resets = self.settings.prove_in_use & Settings::BY_RESETS != 0;
        let is_xdp = |attached: &Attached| attached.mode != AttachMode::Tc;
        (by_resets && self.own.have_tagged_device() && self.attached.iter().any(is_xdp)).then(|| {
            "prove = \"reset\": XDP does not see VLAN tags that a driver removed; untagged frames to a hardware address that a \
             VLAN device has, too, pass unproven; set [agent] attach = \"tc\""
                .to_owned()
        })
    }

    /// Sets the addresses from which the kernel program replies to refused packets.
    ///
    /// # Errors
    ///
    /// When the map cannot be written.
    pub fn set_own(&mut self, own: OwnAddresses) -> Result<(), LoadError> {
        if own != self.own {
            own.write(map_mut(&mut self.ebpf, "OWN")?, &self.own)?;
            self.own = own;
        }
        Ok(())
    }

    /// Sets the ports whose SYNs are not answered by cookies, since netfilter sends their connections elsewhere. New ones are
    /// written again at the next call: a program that has just answered a SYN may have replaced a port's value.
    ///
    /// # Errors
    ///
    /// When the map cannot be written.
    pub fn set_translated(&mut self, ports: &Translations) -> Result<(), LoadError> {
        if self.settings.prove_in_use & Settings::BY_COOKIES != 0 {
            let mut map = Array::<_, u32>::try_from(map_mut(&mut self.ebpf, "COOKIE_PORTS")?)?;
            for port in self
                .translated
                .keys()
                .filter(|port| !ports.contains_key(port))
            {
                map.set(u32::from(*port), 0, 0)?;
            }
            let is_new = |port: &u16| !self.translated.contains_key(port);
            let is_known = |port: &&u16| !is_new(port) && !self.new_translated.contains(port);
            for port in ports.keys().filter(|port| !is_known(port)) {
                map.set(u32::from(*port), TRANSLATED, 0)?;
            }
            self.new_translated = ports.keys().copied().filter(is_new).collect();
        }
        self.translated.clone_from(ports);
        Ok(())
    }

    /// The ports of [`Datapath::set_translated`].
    #[must_use]
    pub const fn translated(&self) -> &Translations {
        &self.translated
    }

    /// The direction of the policy.
    #[must_use]
    pub const fn direction(&self) -> Direction {
        if self.settings.is_egress != 0 {
            Direction::Egress
        } else {
            Direction::Ingress
        }
    }

    /// The bans, for reading and changing.
    ///
    /// # Errors
    ///
    /// When the object does not match the agent.
    pub fn bans(&mut self) -> Result<Bans<'_>, LoadError> {
        Bans::of(map_mut(&mut self.ebpf, pins::BANS)?)
    }

    /// Whether ban lists are in effect, as those of an earlier agent.
    ///
    /// # Errors
    ///
    /// When the map cannot be read.
    pub fn has_lists(&self) -> Result<bool, LoadError> {
        lists::are_in_effect(map(&self.ebpf, pins::LISTS)?)
    }

    /// Puts ban lists in effect instead of all others, for this policy and the next ones; `None` is no list. Returns
    /// whether packets may still use others.
    ///
    /// # Errors
    ///
    /// When the kernel refuses the map.
    pub fn set_lists(&mut self, lists: Option<&ListMap>) -> Result<bool, LoadError> {
        let outer = map_mut(&mut self.ebpf, pins::LISTS)?;
        match lists {
            Some(lists) => lists.put(outer).map(|()| true),
            None => lists::remove(outer),
        }
    }
}

/// The row of a limit with `cluster` at this host's share. With `is_open`, nothing is refused.
fn at_share(rule: &Rule, share: Share, is_open: bool) -> Rule {
    let mut shared = rule.at_share(share);
    if is_open && shared.enforcement == Enforcement::Enforce as u8 {
        shared.enforcement = Enforcement::Observe as u8;
        // A hold that does not fit refuses.
        return shared.without_holds();
    }
    shared
}

/// `bpf_xdp_get_buff_len` came with frames in several buffers, Linux 5.18 (commit 0165cc817075).
fn kernel_has_multi_buffer() -> bool {
    aya::util::KernelVersion::current()
        .is_ok_and(|version| version >= aya::util::KernelVersion::new(5, 18, 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_is_open_has_no_holds_which_refuse() {
        let image = crate::compile::compile(
            &config::parse(
                std::path::Path::new("limits.toml"),
                "[agent]\ninterfaces = [\"lo\"]\n[cluster]\nname = \"c\"\nstore = \"redis://127.0.0.1\"\n\
                 [[limit]]\nname = \"a\"\nrate = \"1000/s\"\nburst = 1000\ncluster = \"shares\"\n",
            )
            .unwrap()
            .config,
            Direction::Ingress,
        )
        .unwrap();
        let rule = &image.rules[0];
        assert!(at_share(rule, Share::WHOLE, false).has_holds());
        assert!(!at_share(rule, Share::WHOLE, true).has_holds());
    }
}
