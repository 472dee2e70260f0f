//! A program as `bpftool prog dump xlated` lists it: its functions, who calls whom, and how deep their stacks are.

use std::collections::{BTreeMap, BTreeSet};

/// How kernels such as Linux 6.1 round up each function's part of the stack. Newer ones round to 16 where there is a compiler
/// to machine code.
const ROUNDED_TO: usize = 32;
/// The most that the verifier accepts of a chain of calls (`MAX_BPF_STACK`).
pub const MOST_STACK: usize = 512;

/// The functions of a program, by their first instruction.
pub struct Code {
    functions: BTreeMap<usize, Function>,
}

#[derive(Debug, Default)]
struct Function {
    stack: usize,
    calls: BTreeSet<usize>,
}

impl Code {
    /// Reads a listing.
    pub fn parse(listing: &str) -> Self {
        let instructions: Vec<(usize, &str)> = listing.lines().filter_map(instruction).collect();
        let mut functions: BTreeMap<usize, Function> = instructions
            .iter()
            .filter_map(|(at, text)| called(*at, text))
            .chain([0])
            .map(|first| (first, Function::default()))
            .collect();
        // Registers that hold the address of the stack's end, for the next instruction to go down from.
        let mut copy = "";
        for (at, text) in instructions {
            let Some((_, function)) = functions.range_mut(..=at).next_back() else {
                continue;
            };
            function.calls.extend(called(at, text));
            let below = below_the_end(text).or_else(|| {
                let (register, down) = text.split_once(" += -")?;
                (register == copy).then(|| number(down))?
            });
            function.stack = function.stack.max(below.unwrap_or(0));
            copy = text.strip_suffix(" = r10").unwrap_or("");
        }
        Self { functions }
    }

    /// Bytes of stack of the deepest chain of calls.
    pub fn deepest(&self) -> usize {
        self.depths().get(&0).copied().unwrap_or(0)
    }

    /// The stack of each function in that chain.
    pub fn chain(&self) -> Vec<usize> {
        let depths = self.depths();
        let (mut chain, mut next) = (Vec::new(), Some(0));
        while let Some(function) = next.and_then(|first| self.functions.get(&first)) {
            chain.push(function.stack);
            next = function
                .calls
                .iter()
                .copied()
                .max_by_key(|callee| depths.get(callee));
        }
        chain
    }

    /// The bytes of stack of the deepest chain of calls from each function that the program reaches.
    ///
    /// Without recursion: each function is visited once, and functions that call each other are an error. The verifier
    /// accepts none, but a listing may be misread.
    fn depths(&self) -> BTreeMap<usize, usize> {
        let mut depths = BTreeMap::new();
        let mut begun = BTreeSet::new();
        let mut to_visit = vec![0];
        while let Some(first) = to_visit.last().copied() {
            let function = match self.functions.get(&first) {
                Some(function) if !depths.contains_key(&first) => function,
                _ => {
                    to_visit.pop();
                    continue;
                }
            };
            let unknown = |callee: &&usize| {
                self.functions.contains_key(*callee) && !depths.contains_key(*callee)
            };
            let unknown: Vec<usize> = function.calls.iter().filter(unknown).copied().collect();
            if unknown.is_empty() {
                let below = function
                    .calls
                    .iter()
                    .filter_map(|callee| depths.get(callee));
                let below = below.max().copied().unwrap_or(0);
                depths.insert(
                    first,
                    function.stack.max(1).next_multiple_of(ROUNDED_TO) + below,
                );
                continue;
            }
            assert!(
                begun.insert(first),
                "the function at instruction {first} calls itself"
            );
            to_visit.extend(unknown);
        }
        depths
    }
}

/// The number and the text of an instruction, without its code in brackets.
fn instruction(line: &str) -> Option<(usize, &str)> {
    let (number, rest) = line.trim_start().split_once(": (")?;
    Some((number.parse().ok()?, rest.split_once(") ")?.1))
}

/// The first instruction of the function that is called, directly or by a helper.
fn called(at: usize, text: &str) -> Option<usize> {
    let distance = match text.split_once("call pc") {
        Some((_, distance)) => distance,
        None => text.split_once("subprog[")?.1,
    };
    let sign = if distance.starts_with('-') { -1 } else { 1 };
    let distance = sign * isize::try_from(number(distance.get(1..)?)?).ok()?;
    at.checked_add_signed(distance + 1)
}

/// How far below the stack's end an instruction reads or writes.
fn below_the_end(text: &str) -> Option<usize> {
    number(text.split_once("(r10 -")?.1)
}

/// The digits that a text begins with.
fn number(text: &str) -> Option<usize> {
    let end = text
        .find(|letter: char| !letter.is_ascii_digit())
        .unwrap_or(text.len());
    text[..end].parse().ok()
}

/// Of this file itself.
pub fn the_stack_of_a_listing_is_that_of_its_deepest_chain_of_calls() {
    let listing = "int first(struct xdp_md * context):\n\
            ; a line of source: (of no account) r10 -400\n\
            \x20  0: (7b) *(u64 *)(r10 -24) = r1\n\
            \x20  1: (bf) r2 = r10\n\
            \x20  2: (07) r2 += -72\n\
            \x20  3: (85) call pc+3#bpf_prog_1_second\n\
            \x20  4: (07) r3 += -400\n\
            \x20  5: (85) call bpf_map_lookup_elem#1\n\
            \x20  6: (95) exit\n\
            u64 second():\n\
            \x20  7: (71) r1 = *(u8 *)(r10 -8)\n\
            \x20  8: (85) call pc+1#bpf_prog_2_third\n\
            \x20  9: (95) exit\n\
            u64 third():\n\
            \x20 10: (95) exit\n";
    // 72 up to 96, 8 up to 32, and a frame is never without any.
    assert_eq!(Code::parse(listing).deepest(), 96 + 32 + 32);
}

/// As long as no kernel's program is.
pub fn a_long_chain_of_calls_is_measured_without_recursion() {
    const FUNCTIONS: usize = 100_000;
    let listing: String = (0..FUNCTIONS)
        .map(|nth| {
            format!(
                "{}: (85) call pc+1#next\n{}: (95) exit\n",
                2 * nth,
                2 * nth + 1
            )
        })
        .collect();
    let code = Code::parse(&listing);
    // The last one calls a function without instructions.
    assert_eq!(code.deepest(), (FUNCTIONS + 1) * ROUNDED_TO);
    assert_eq!(code.chain().len(), FUNCTIONS + 1);
}

pub fn functions_that_call_each_other_are_an_error() {
    let listing = "0: (85) call pc+1#second\n1: (95) exit\n2: (85) call pc-3#first\n3: (95) exit\n";
    let code = Code::parse(listing);
    assert!(std::panic::catch_unwind(|| code.deepest()).is_err());
}
