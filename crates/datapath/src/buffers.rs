//! The layout of socket buffers, in which generic XDP reads how many packets a buffer contains.

use std::path::Path;

use bpf::btf::Btf;
use bpf::lockdown::Lockdown;
use common::buffer::BufferLayout;

/// The kernel's layout, or [`BufferLayout::UNKNOWN`] where it has no BTF or forbids programs to read its memory.
pub(crate) fn layout() -> BufferLayout {
    let Some(alignment) = cache_line() else {
        return BufferLayout::UNKNOWN;
    };
    if Lockdown::of(Path::new("/sys")) == Lockdown::Confidentiality {
        return BufferLayout::UNKNOWN;
    }
    Btf::of_kernel(Path::new("/sys"))
        .ok()
        .and_then(|btf| layout_in(&btf, alignment))
        .unwrap_or(BufferLayout::UNKNOWN)
}

fn layout_in(btf: &Btf, alignment: u32) -> Option<BufferLayout> {
    let segments = btf.offset("skb_shared_info", "gso_size")?;
    let is_followed = btf.offset("skb_shared_info", "gso_segs")? == segments + 2;
    is_followed.then_some(BufferLayout {
        start: btf.offset("xdp_buff", "data_hard_start")?,
        length: btf.offset("xdp_buff", "frame_sz")?,
        // SKB_DATA_ALIGN in include/linux/skbuff.h.
        shared: btf.size("skb_shared_info")?.next_multiple_of(alignment),
        segments,
    })
}

/// SMP_CACHE_BYTES of the little-endian machines where it is the same in every kernel.
fn cache_line() -> Option<u32> {
    match std::env::consts::ARCH {
        "x86_64" | "aarch64" | "riscv64" | "loongarch64" => Some(64),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_kernels_layout_is_plausible() {
        let Ok(btf) = Btf::of_kernel(Path::new("/sys")) else {
            return;
        };
        let layout =
            layout_in(&btf, 64).expect("BTF has struct xdp_buff and struct skb_shared_info");
        assert!(
            layout.is_known()
                && layout.shared.is_multiple_of(64)
                && layout.segments + 4 <= layout.shared,
            "{layout:?}"
        );
        assert!(layout.start + 8 <= layout.length, "{layout:?}");
    }
}
