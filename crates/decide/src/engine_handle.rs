//! The entry point of questions.

use std::sync::Arc;

use api::decide::Question;
use arc_swap::Guard;

use super::engine::{Current, Engine, Now};
use super::error::DecideError;
use super::line::Decision;

/// The current engine and its clock.
#[derive(Clone)]
pub struct EngineHandle {
    current: Arc<Current>,
    now: Now,
}

impl EngineHandle {
    /// For an engine that can be replaced.
    #[must_use]
    pub const fn new(current: Arc<Current>, now: Now) -> Self {
        Self { current, now }
    }

    /// Decides a request. A refused one with `wait` waits in its queue; dropping the decision removes it.
    ///
    /// # Errors
    ///
    /// When the question is invalid; nothing is charged then.
    pub fn ask(&self, question: &Question) -> Result<Decision, DecideError> {
        let engine = self.engine();
        if question.wait.is_none() {
            return engine
                .decide_alone(question, (self.now)())
                .map(Decision::Made);
        }
        let decisions =
            engine
                .waiting()
                .decide(&self.current, std::slice::from_ref(question), self.now);
        decisions
            .map_err(|(_, error)| error)?
            .pop()
            .ok_or(DecideError::Ending)
    }

    /// Decides many requests separately.
    ///
    /// # Errors
    ///
    /// The first invalid question with its index; none is charged then.
    pub fn ask_each(&self, questions: &[Question]) -> Result<Vec<Decision>, (usize, DecideError)> {
        let engine = self.engine();
        if questions.iter().any(|question| question.wait.is_some()) {
            return engine.waiting().decide(&self.current, questions, self.now);
        }
        let answers = engine.decide_each(questions, (self.now)())?;
        Ok(answers.into_iter().map(Decision::Made).collect())
    }

    /// The slot that has the current engine.
    pub(super) const fn current(&self) -> &Arc<Current> {
        &self.current
    }

    /// The current engine.
    #[must_use]
    pub fn engine(&self) -> Guard<Arc<Engine>> {
        self.current.load()
    }

    /// The instant for decisions, in nanoseconds.
    #[must_use]
    pub fn now(&self) -> u64 {
        (self.now)()
    }
}
