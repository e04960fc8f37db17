//! Who changed an intent or an operation, and why.

/// Who acts, and optionally why. Both are written to the audit trail.
///
/// Every verb takes `impl Into<Actor>`, so that a name alone is enough:
///
/// ```
/// use sqlite_outbox::Actor;
///
/// let actor = Actor::new("support desk").reason("the customer ordered twice");
/// assert_eq!(actor.name(), "support desk");
/// assert_eq!(Actor::from("webhook"), Actor::new("webhook"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Actor {
    name: String,
    reason: Option<String>,
}

impl Actor {
    /// An actor of this name, without a reason.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), reason: None }
    }

    /// Why the actor acts, for people. Defaults to none.
    #[must_use]
    pub fn reason(mut self, reason: impl Into<String>) -> Self {
        self.reason = Some(reason.into());
        self
    }

    /// The actor's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn why(&self) -> Option<&str> {
        self.reason.as_deref()
    }
}

impl From<&str> for Actor {
    fn from(name: &str) -> Self {
        Self::new(name)
    }
}

impl From<String> for Actor {
    fn from(name: String) -> Self {
        Self::new(name)
    }
}

impl From<&Self> for Actor {
    fn from(actor: &Self) -> Self {
        actor.clone()
    }
}
