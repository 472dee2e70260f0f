//! The processing of a frame to its verdict: parse, classify, evaluate, count.
//!
//! The kernel programs and `weir replay` run it, each with its own [`Program`]: BPF maps or memory.

use core::ffi::c_void;
use core::mem::MaybeUninit;

use crate::buffer::Segments;
use crate::connections::{Admission, Tuple};
use crate::counters::Bypass;
use crate::essential::Essential;
use crate::neighbour::Neighbour;
use crate::packet::reply::SynReply;
use crate::packet::{
    Address, Depth, Direction, Disposition, Kind, Link, Packet, Protocol, RareHeaders, parse,
};
use crate::prefix::PrefixEntry;
use crate::proof::{Proof, Step, proven_span};
use crate::rule::{RuleSpan, Size, Subject};
use crate::scope::{ScopedPacket, SpansBy};
use crate::settings::{PortSpans, SPANS, span_index};
use crate::throttle::{Outcome, Passage, Steps, Verdict, evaluate};

/// A frame at a hook.
pub trait Frame: RareHeaders {
    /// The index of its incoming or outgoing interface.
    fn interface(&self) -> u32;

    /// The packets that the frame represents.
    fn segments(&self) -> Segments;

    /// The kernel's context of the frame.
    fn context(&self) -> Context {
        Context::None
    }
}

/// The kernel's context of a frame, for its helpers.
#[derive(Clone, Copy, Debug)]
pub enum Context {
    /// The frame is not in a kernel.
    None,
    /// Of a frame in the driver.
    Driver(*mut c_void),
    /// Of a frame in the network stack.
    Stack(*mut c_void),
}

/// The policy and the states that classification reads, in addition to those of [`crate::throttle::Host`].
pub trait Program: Steps {
    /// How far packets have to be parsed.
    fn depth(&self) -> Depth;
    /// Whether nothing is refused, only counted.
    fn only_observes(&self) -> bool;
    /// The entry of the longest prefix that contains an address, with the bank in effect in its source index. The bank is
    /// read here and nowhere else, since it may change at any time.
    fn prefix_entry(&self, address: Address) -> PrefixEntry;
    /// The network of an address ([`crate::network`]) in the bank of its entry; 0 if no limit requires it or there is
    /// none.
    fn network(&self, entry: PrefixEntry, address: Address) -> u32;
    /// Whether the source is banned; counts the packet if it is.
    fn is_banned(&self, source: Address) -> bool;
    /// Whether one more packet of this kind conforms on this interface: within the allowance of its neighbour, else within that
    /// of the interface. Charges it if so.
    fn conforms(&self, kind: Essential, interface: u32, neighbour: Neighbour) -> bool;
    /// [`crate::settings::Settings::essential_limited`].
    fn essential_limited(&self) -> u32;
    /// Whether sources of some limit prove their address.
    fn proves(&self) -> bool;
    /// The proof in a TCP packet, where sources have to prove their address, by cookies or by resets. Without a kernel,
    /// there is none.
    fn prove(&self, context: Context, packet: &Packet, by_resets: bool) -> Proof {
        let _ = (context, packet, by_resets);
        Proof::NONE
    }
    /// Notes that the connection proven by the present packet has passed: packets behind it are its own.
    fn note_proven(&self) {}
    /// Whether packets whose protocol is hidden are refused.
    fn refuses_hidden(&self) -> bool;
    /// The way to find the spans of a packet.
    fn spans_by(&self) -> SpansBy;
    /// The spans of a local port.
    fn port_spans(&self, port: u16) -> Option<&PortSpans>;
    /// A row of [`crate::settings::Settings::spans`]; `index` is below [`SPANS`].
    fn span(&self, index: usize) -> RuleSpan;
    /// As [`crate::scope::find`].
    fn scoped_span(&self, source_index: u32, interface: u32, packet: ScopedPacket) -> RuleSpan;
    /// Whether some rule counts open connections; see [`crate::connections`].
    fn counts_connections(&self) -> bool;
    /// [`crate::connections::reserve`].
    fn reserve_connection(&self, span: RuleSpan, subject: &Subject, tuple: Tuple) -> Admission;
    /// [`crate::connections::conclude`].
    fn conclude_connection(&self, passes: bool);
    /// The number of rows of rules for one multiplier.
    fn rules_per_multiplier(&self) -> u32;
    /// Returns `port`, whatever `any` is. In the kernel, the verifier loses its knowledge of the value here.
    fn forget(&self, port: u16, any: u64) -> u16 {
        let _ = any;
        port
    }
}

/// The verdict on a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketVerdict<'c> {
    /// It passes.
    Passed(Passage),
    /// The rule with this index refuses it; with the subject that it evaluated.
    Refused(u32, &'c Subject),
    /// It is refused before any rule is evaluated.
    Dropped,
    /// It is a SYN, which is answered.
    Answered(SynReply),
}

/// The rules for a frame, or the reason why there are none.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
struct Found(u64);

impl Found {
    const BYPASS: u64 = 1 << 63;
    /// A connection is reserved, until the other rules have a verdict.
    const OPENS: u64 = 1 << 62;
    /// The packet is the ACK that proves a source's address.
    const PROVEN: u64 = 1 << 61;
    /// The first rule refuses the packet, whose connection would be one too many.
    const REFUSED: u64 = 1 << 60;

    #[inline(always)]
    const fn rules(span: RuleSpan) -> Self {
        Self((span.first as u64) << 8 | (span.count as u64 & 0xff))
    }

    #[inline(always)]
    const fn bypass(bypass: Bypass) -> Self {
        Self(Self::BYPASS | bypass as u64)
    }

    #[inline(always)]
    const fn answered(reply: SynReply) -> Self {
        Self(Self::BYPASS | reply.to_bits() << 8 | reply.bypass() as u64)
    }

    /// The [`Bypass`].
    #[inline(always)]
    const fn reason(self) -> u32 {
        self.0 as u32 & 0xff
    }

    /// The reply to an answered SYN.
    #[inline(always)]
    const fn reply(self) -> SynReply {
        SynReply::from_bits((self.0 & !Self::BYPASS) >> 8)
    }

    #[inline(always)]
    const fn span(self) -> RuleSpan {
        RuleSpan {
            first: (self.0 >> 8) as u32,
            count: (self.0 & 0xff) as u32,
        }
    }
}

/// Working memory for one frame.
#[derive(Debug)]
pub struct Case {
    size: Size,
    /// The interface's index, if a limit requires it.
    interface: u32,
    /// Written only if rules were found: clearing it for every frame would cost as much as a map look-up.
    subject: MaybeUninit<Subject>,
}

impl Case {
    /// Without a frame. `interface` is its index if a limit counts by it, else 0.
    #[inline(always)]
    #[must_use]
    pub const fn new(interface: u32) -> Self {
        Self {
            size: Size::of_one(0),
            interface,
            subject: MaybeUninit::uninit(),
        }
    }

    /// Parses, classifies, decides and counts.
    #[inline(always)]
    #[must_use]
    pub fn evaluate(
        &mut self,
        program: &impl Program,
        frame: &impl Frame,
        link: Link,
        direction: Direction,
    ) -> PacketVerdict<'_> {
        let found = self.find(program, frame, link, direction);
        self.decide(program, found)
    }

    #[inline(always)]
    fn find(
        &mut self,
        program: &impl Program,
        frame: &impl Frame,
        link: Link,
        direction: Direction,
    ) -> Found {
        self.size = Size::of_one(frame.length());
        let packet = match parse(frame, link, program.depth()) {
            Ok(packet) => packet,
            Err(unparsed) => {
                return Found::bypass(match unparsed.disposition() {
                    Disposition::Limit(kind) => {
                        let neighbour = if kind == Essential::Arp {
                            Neighbour::of(frame, link, direction)
                        } else {
                            Neighbour::NONE
                        };
                        without_address(program, kind, frame.interface(), neighbour)
                    }
                    Disposition::Refuse => Bypass::Malformed,
                });
            }
        };
        let segments = frame.segments();
        if segments.payload != 0 {
            self.size = segments.size(frame.length(), packet.headers(frame));
        }
        match self.classify(program, frame, &packet, (link, direction)) {
            Ok((span, opening)) => {
                if program.counts_connections() && opening != 0 && direction == Direction::Ingress {
                    return Found(self.reserve(program, &packet, span).0 | opening & Found::PROVEN);
                }
                Found(Found::rules(span).0 | opening & Found::PROVEN)
            }
            Err(found) => found,
        }
    }

    /// Reserves the connection that a packet opens.
    #[inline(always)]
    fn reserve(&self, program: &impl Program, packet: &Packet, span: RuleSpan) -> Found {
        // SAFETY: as in `decide`.
        let subject = unsafe { self.subject.assume_init_ref() };
        let tuple = Tuple {
            remote: [packet.source.hi, packet.source.lo],
            local: [packet.destination.hi, packet.destination.lo],
            remote_port: u32::from(packet.ports.source),
            local_port: u32::from(packet.ports.destination),
        };
        let admission = program.reserve_connection(span, subject, tuple);
        if let Some(rule) = admission.refusing() {
            return Found(
                Found::rules(RuleSpan {
                    first: rule,
                    count: 1,
                })
                .0 | Found::REFUSED,
            );
        }
        let reserved = admission.rules();
        if reserved == 0 {
            return Found::rules(span);
        }
        let others = RuleSpan {
            first: span.first + reserved,
            count: span.count.saturating_sub(reserved),
        };
        Found(Found::rules(others).0 | Found::OPENS)
    }

    /// Finds the rules for a packet, or the reason why there are none. Writes the subject if there are rules. The number is
    /// not 0 if the packet opens a connection: [`Found::PROVEN`] with a proof, else [`Found::OPENS`].
    #[inline(always)]
    fn classify(
        &mut self,
        program: &impl Program,
        frame: &impl Frame,
        packet: &Packet,
        (link, direction): (Link, Direction),
    ) -> Result<(RuleSpan, u64), Found> {
        let other = packet.other(direction);
        let entry = program.prefix_entry(other);
        if entry.exemption() == PrefixEntry::NEVER_LIMIT {
            return Err(Found::bypass(Bypass::NeverLimit));
        }
        let has_allowance = entry.exemption() == PrefixEntry::WITHIN_ALLOWANCE;
        if direction == Direction::Ingress && entry.may_be_banned() && program.is_banned(other) {
            return Err(Found::bypass(Bypass::Banned));
        }
        let mut local_port = packet.local_port_or_0(direction);
        // Above its own limit it counts as ordinary traffic, so that a flood from one source does not starve the
        // others.
        if let Some(kind) = packet.essential() {
            // A flood by others does not use up the allowance of gateways and resolvers.
            if has_allowance && conforms_as_protected(program, frame) {
                return Err(Found::bypass(Bypass::NeverLimit));
            }
            let neighbour = Neighbour::of(frame, link, direction);
            if program.conforms(kind, frame.interface(), neighbour) {
                return Err(Found::bypass(Bypass::Essential));
            }
            if program.essential_limited() & 1 << kind as u32 == 0 {
                return Err(Found::bypass(Bypass::EssentialThrottled));
            }
            // Otherwise the verifier would follow each of DHCP's ports separately.
            local_port = program.forget(local_port, other.lo);
        }
        if entry.exemption() == PrefixEntry::UNLIMITED {
            return Err(Found::bypass(Bypass::Unlimited));
        }
        if program.refuses_hidden() && packet.protocol == Protocol::Hidden {
            return Err(Found::bypass(Bypass::Malformed));
        }
        let index = span_index(packet.protocol, packet.kind);
        let mut span = span(
            program,
            frame,
            packet,
            index,
            local_port,
            entry.source_index(),
        )
        .ok_or(Found::bypass(Bypass::Unlimited))?;
        let mut opening = if packet.kind == Kind::Connection {
            Found::OPENS
        } else {
            0
        };
        if program.proves() && span.count & RuleSpan::PROVES != 0 {
            let proof = program.prove(frame.context(), packet, span.count & RuleSpan::RESETS != 0);
            if proof.is(Step::Answer) {
                return Err(Found::answered(proof.reply()));
            }
            if proof.is(Step::Refuse) {
                return Err(Found::bypass(Bypass::Unanswered));
            }
            if proof.is(Step::Unproven) {
                return Err(Found::bypass(Bypass::Unproven));
            }
            let is_proven = proof.is(Step::Proven);
            if is_proven || proof.is(Step::Closed) {
                let index = if is_proven {
                    opening = Found::PROVEN;
                    proven_span(packet.kind)
                } else {
                    opening = 0;
                    span_index(packet.protocol, Kind::Plain)
                };
                span = self::span(
                    program,
                    frame,
                    packet,
                    index,
                    local_port,
                    entry.source_index(),
                )
                .unwrap_or_default();
                if is_proven && span.without_proofs().count == 0 {
                    program.note_proven();
                }
            }
            span = span.without_proofs();
        }
        if span.count == 0 {
            return Err(Found::bypass(Bypass::Unlimited));
        }
        // After proofs, which a forger cannot give.
        if has_allowance && conforms_as_protected(program, frame) {
            if opening == Found::PROVEN {
                program.note_proven();
            }
            return Err(Found::bypass(Bypass::NeverLimit));
        }
        self.subject.write(Subject {
            hi: other.hi,
            lo: other.lo,
            is_ipv4: u32::from(packet.is_ipv4),
            local_port: u32::from(local_port),
            class: entry.class(),
            interface: self.interface,
            network: program.network(entry, other),
            size: self.size,
        });
        Ok((span, opening))
    }

    /// As [`Case::decide`], for rules that follow those of a connection. All of them pass the packet, or none counts it.
    #[inline(always)]
    fn decide_with_connection<'c>(
        &self,
        program: &impl Program,
        found: Found,
        subject: &'c Subject,
    ) -> PacketVerdict<'c> {
        let span = found.span();
        if found.0 & Found::REFUSED != 0 {
            return PacketVerdict::Refused(span.first, subject);
        }
        let decided = if span.count == 0 {
            Verdict::Pass(Passage::FREE)
        } else {
            evaluate(program, span, subject)
        };
        if found.0 & Found::OPENS != 0 {
            program.conclude_connection(matches!(decided, Verdict::Pass(_)));
        }
        verdict(decided, subject)
    }

    #[inline(always)]
    fn decide(&self, program: &impl Program, found: Found) -> PacketVerdict<'_> {
        if found.0 & Found::BYPASS == 0 {
            // SAFETY: this is written whenever rules are found; the kernel's verifier checks that, too.
            let subject = unsafe { self.subject.assume_init_ref() };
            let verdict = if program.counts_connections() {
                self.decide_with_connection(program, found, subject)
            } else {
                verdict(evaluate(program, found.span(), subject), subject)
            };
            if program.proves()
                && found.0 & Found::PROVEN != 0
                && matches!(verdict, PacketVerdict::Passed(_))
            {
                program.note_proven();
            }
            return verdict;
        }
        let bypass = if program.proves() {
            found.reason()
        } else {
            found.0 as u32
        };
        // A ban is an operator's order; `observe` only concerns limits.
        let is_enforced = !program.only_observes() || bypass == Bypass::Banned as u32;
        let outcome = match (Bypass::is_refusal(bypass), is_enforced) {
            (false, _) => Outcome::Passed,
            (true, true) => Outcome::Throttled,
            (true, false) => Outcome::WouldThrottle,
        };
        program.count(bypass, outcome, self.size);
        if program.proves() && SynReply::is_of(bypass) {
            return PacketVerdict::Answered(found.reply());
        }
        if outcome == Outcome::Throttled {
            PacketVerdict::Dropped
        } else {
            PacketVerdict::Passed(Passage::FREE)
        }
    }
}

#[inline(always)]
fn verdict(verdict: Verdict, subject: &Subject) -> PacketVerdict<'_> {
    match verdict {
        Verdict::Pass(passage) => PacketVerdict::Passed(passage),
        Verdict::Refuse(rule) => PacketVerdict::Refused(rule, subject),
    }
}

/// Charges a packet of an exempt address that others can forge.
#[inline(always)]
fn conforms_as_protected(program: &impl Program, frame: &impl Frame) -> bool {
    program.conforms(Essential::Protected, frame.interface(), Neighbour::NONE)
}

/// Charges and counts a frame without an address.
#[inline(always)]
fn without_address(
    program: &impl Program,
    kind: Essential,
    interface: u32,
    neighbour: Neighbour,
) -> Bypass {
    match (program.conforms(kind, interface, neighbour), kind) {
        (true, _) => Bypass::NotIp,
        (false, Essential::NotIp) => Bypass::NotIpThrottled,
        (false, _) => Bypass::EssentialThrottled,
    }
}

#[inline(always)]
fn span(
    program: &impl Program,
    frame: &impl Frame,
    packet: &Packet,
    index: usize,
    local_port: u16,
    source_index: u32,
) -> Option<RuleSpan> {
    let spans_by = program.spans_by();
    let is_of_port =
        || matches!(packet.protocol, Protocol::Tcp | Protocol::Udp) && packet.has_ports();
    let mut span = match spans_by {
        SpansBy::Scope => {
            let scoped = ScopedPacket::new(index);
            let scoped = if is_of_port() {
                scoped.with_port(local_port)
            } else {
                scoped
            };
            return Some(program.scoped_span(source_index, frame.interface(), scoped));
        }
        SpansBy::Port if is_of_port() => program
            .port_spans(local_port)?
            .packed
            .get(index)
            .map(|packed| PortSpans::unpack(*packed))?,
        _ if index < SPANS => program.span(index),
        _ => return None,
    };
    span.first += source_index * program.rules_per_multiplier();
    Some(span)
}
