//! The contents of lists that are in effect, and the choice where there is no room for all.

use std::sync::Arc;

use common::list::build::{ListTrees, build_lists};
use config::{PrefixKey, human};
use datapath::ListMap;
use datapath::memory::Room;
use lists::{Listed, MOST_PREFIXES, find, merge};

/// A list's prefixes.
pub(super) type Content = Arc<Vec<Listed>>;

/// The map in effect, and the lists by number.
pub(super) struct InEffect {
    pub map: ListMap,
    pub names: Vec<String>,
    pub contents: Vec<Content>,
    pub exceptions: Vec<PrefixKey>,
}

impl InEffect {
    /// The lists' names and contents, by number.
    pub fn lists(&self) -> impl Iterator<Item = (&str, &Content)> {
        self.names.iter().map(String::as_str).zip(&self.contents)
    }

    /// The content of a list that is in effect.
    fn content(&self, name: &str) -> Option<&Content> {
        let mut lists = self.lists();
        lists.find_map(|(known, content)| (known == name).then_some(content))
    }
}

/// A list and its content that is to be in effect.
struct Part {
    name: String,
    content: Content,
    /// The content of it that is in effect.
    before: Content,
    /// The prefixes of a content for which there is no room.
    too_many: Option<usize>,
}

/// The contents to be put in effect, in the config's order.
pub(super) struct Choice(Vec<Part>);

impl Choice {
    /// All that was read.
    pub fn new<'l>(
        lists: impl Iterator<Item = (&'l str, &'l Content)>,
        in_effect: Option<&InEffect>,
    ) -> Self {
        let part = |(name, content): (&str, &Content)| Part {
            name: name.to_owned(),
            content: Arc::clone(content),
            before: in_effect
                .and_then(|in_effect| in_effect.content(name))
                .map(Arc::clone)
                .unwrap_or_default(),
            too_many: None,
        };
        Self(lists.map(part).collect())
    }

    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn prefixes(&self) -> usize {
        self.0.iter().map(|part| part.content.len()).sum()
    }

    /// Of the list with the most prefixes, leaves in effect what is; so that no list displaces a smaller one. Returns
    /// whether that makes room.
    fn shorten(&mut self) -> bool {
        let grown = self
            .0
            .iter_mut()
            .filter(|part| part.content.len() > part.before.len());
        let Some(largest) = grown.max_by_key(|part| part.content.len()) else {
            return false;
        };
        largest.too_many = Some(largest.content.len());
        largest.content = Arc::clone(&largest.before);
        true
    }

    /// The lists for whose contents there is no room: (name, its prefixes, those that stay in effect).
    pub fn shortened(&self) -> impl Iterator<Item = (&str, usize, usize)> {
        self.0
            .iter()
            .filter_map(|part| Some((&*part.name, part.too_many?, part.content.len())))
    }

    /// The kernel's trees of the contents; and why there was no room for all, if they had to be shortened. With
    /// `keeps_others`, they are not shortened for want of memory: the lists of an earlier agent stay in effect.
    ///
    /// # Errors
    ///
    /// When there is no room; with the reason.
    pub fn trees(
        &mut self,
        exceptions: &[PrefixKey],
        keeps_others: bool,
    ) -> Result<(ListTrees, String), String> {
        let mut why = String::new();
        loop {
            let prefixes = self.prefixes();
            if prefixes > MOST_PREFIXES {
                why = format!(
                    "{prefixes} prefixes in all, and at most {MOST_PREFIXES} are supported"
                );
            } else {
                let trees = build_lists(merge(&self.slices(), exceptions));
                let (room, bytes) = (Room::now(), trees.bytes());
                let tightest = room
                    .tightest()
                    .filter(|limit| bytes > limit.left_bytes - limit.left_bytes / 16);
                let Some(limit) = tightest else {
                    return Ok((trees, why));
                };
                why = format!("they take {} more, and {limit}", human::size(bytes));
                if keeps_others {
                    return Err(why);
                }
            }
            if !self.shorten() {
                return Err(why);
            }
        }
    }

    fn slices(&self) -> Vec<&[Listed]> {
        self.0.iter().map(|part| part.content.as_slice()).collect()
    }

    /// The lists' names and contents.
    pub fn into_parts(self) -> (Vec<String>, Vec<Content>) {
        self.0
            .into_iter()
            .map(|part| (part.name, part.content))
            .unzip()
    }
}

/// The first of these lists that contains a prefix, and the prefix of it; `None` within an exception.
pub(super) fn listed<'l>(
    mut lists: impl Iterator<Item = (&'l str, &'l Content)>,
    exceptions: impl IntoIterator<Item = &'l PrefixKey>,
    whole: &PrefixKey,
) -> Option<(&'l str, &'l Listed)> {
    let mut exceptions = exceptions.into_iter();
    if exceptions.any(|exception| super::own::contains(exception, whole)) {
        return None;
    }
    lists.find_map(|(name, content)| Some((name, find(content, whole)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(prefixes: u32) -> Content {
        let listed = |nth: u32| {
            let mut address = PrefixKey::IPV4.address;
            address[12..].copy_from_slice(&nth.to_be_bytes());
            let length = 128;
            Listed::new(PrefixKey { address, length }, 0)
        };
        Arc::new((0..prefixes).map(listed).collect())
    }

    #[test]
    fn the_largest_lists_make_room_for_the_others() {
        let lists = [
            ("grown", content(900)),
            ("own", content(2)),
            ("large", content(500)),
        ];
        let mut choice = Choice::new(lists.iter().map(|(name, content)| (*name, content)), None);
        let before = content(300);
        choice.0[0].before = Arc::clone(&before);
        assert_eq!(choice.prefixes(), 1_402);
        assert!(choice.shorten());
        assert_eq!(
            choice.shortened().collect::<Vec<_>>(),
            [("grown", 900, 300)]
        );
        assert_eq!(choice.prefixes(), 802);
        // Nothing is in effect of the others.
        assert!(choice.shorten());
        assert!(choice.shorten());
        assert!(!choice.shorten());
        assert_eq!(
            choice.shortened().collect::<Vec<_>>(),
            [("grown", 900, 300), ("own", 2, 0), ("large", 500, 0)]
        );
        assert_eq!(choice.into_parts().1[0], before);
    }
}
