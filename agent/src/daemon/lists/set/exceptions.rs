//! Prefixes that operators except from all lists.

use api::request::Excepted;
use config::PrefixKey;
use lists::write_exceptions;

use super::{BanLists, Set};
use crate::daemon::lists::effect::{InEffect, listed};
use crate::daemon::lists::own::contains;

impl BanLists {
    /// Excepts those of the prefixes that a list contains, for good.
    ///
    /// # Errors
    ///
    /// When the state directory cannot be written; then nothing is excepted. When the lists cannot be put in effect
    /// without them; the exceptions are saved, and this is tried again.
    pub fn except(&self, prefixes: &[PrefixKey]) -> Result<Vec<Excepted>, String> {
        let _work = self.work();
        let mut excepted = Vec::new();
        {
            let mut set = self.set();
            let mut exceptions = set.exceptions.clone();
            for prefix in prefixes {
                let is_around = |exception: &PrefixKey| contains(exception, prefix);
                let effect = set.in_effect.as_ref();
                // One that could not be put in effect is tried again.
                if exceptions.iter().any(is_around)
                    && effect.is_none_or(|effect| effect.exceptions.iter().any(is_around))
                {
                    continue;
                }
                let in_effect = effect.into_iter().flat_map(InEffect::lists);
                if let Some((list, _)) = listed(set.contents().chain(in_effect), [], prefix) {
                    excepted.push(Excepted {
                        cidr: prefix.to_string(),
                        list: list.to_owned(),
                    });
                    exceptions.insert(*prefix);
                }
            }
            if excepted.is_empty() {
                return Ok(excepted);
            }
            write_exceptions(&self.state, &exceptions).map_err(|error| error.to_string())?;
            set.exceptions = exceptions;
        }
        for Excepted { cidr, list } in &excepted {
            tracing::info!("{cidr} excepted from ban list {list:?} by an operator");
        }
        self.apply().map_err(|problem| {
            format!("exceptions from ban lists are saved, and not in effect: {problem}")
        })?;
        Ok(excepted)
    }

    /// Ends the exceptions of exactly these prefixes, since an operator bans them.
    pub fn end_exceptions(&self, prefixes: impl Iterator<Item = PrefixKey>) {
        let prefixes: Vec<PrefixKey> = prefixes.collect();
        let is_excepted = |set: &Set| {
            prefixes
                .iter()
                .any(|prefix| set.exceptions.contains(prefix))
        };
        if !is_excepted(&self.set()) {
            return;
        }
        let _work = self.work();
        let mut exceptions = self.set().exceptions.clone();
        exceptions.retain(|exception| !prefixes.contains(exception));
        match write_exceptions(&self.state, &exceptions) {
            Ok(()) => {
                self.set().exceptions = exceptions;
                // The ban itself is in effect.
                let _ = self.apply();
            }
            // The ban itself is in effect.
            Err(error) => tracing::error!("ending exceptions from ban lists failed: {error}"),
        }
    }
}
