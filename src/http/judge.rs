//! The settings by which an operation says what its service means by an answer.

use super::Http;
use crate::core::{Meaning, Predicate, Rules};

/// A test of a body decides before [`on_status`](Self::on_status), and both decide before the table
/// of HTTP. A body that passes tests of different meanings needs review. Where any test is set, a
/// body that cannot be read is no success.
///
/// A 3xx, a 5xx and a broken answer leave open whether the request was applied. The rules by which
/// one of them means that it was not, and is sent again, are [repeat
/// rules](crate::Handler::repeat_rules) of the stored contract: an unprotected operation gets them,
/// and any operation gets further ones, only with
/// [`weaken_stored_contract`](crate::Operation::weaken_stored_contract). Without that, the answer
/// stays in doubt.
impl Http {
    /// Takes a 2xx answer for success only if its body passes this test, for services that report
    /// failures with status 200. Other answers succeed as well with a body that has one of the
    /// named values, but not because a value is missing or merely there.
    pub fn success_when(self, test: Predicate) -> Self {
        self.test(test, "success_when", |rules| &mut rules.success_when)
    }

    /// Takes an answer whose body passes this test, whatever its status, as refused for good and
    /// not applied.
    pub fn rejected_when(self, test: Predicate) -> Self {
        self.test(test, "rejected_when", |rules| &mut rules.rejected_when)
    }

    /// Takes an answer whose body passes this test, whatever its status, as not applied, to be
    /// tried again with backoff.
    pub fn transient_when(self, test: Predicate) -> Self {
        self.test(test, "transient_when", |rules| &mut rules.transient_when)
    }

    /// Takes an answer whose body passes this test, whatever its status, as not applied, and leaves
    /// the downstream alone as after a 429.
    pub fn limited_when(self, test: Predicate) -> Self {
        self.test(test, "limited_when", |rules| &mut rules.limited_when)
    }

    /// Takes a 5xx answer whose body passes this test as not applied, to be tried again with
    /// backoff.
    pub fn not_applied_when(self, test: Predicate) -> Self {
        self.test(test, "not_applied_when", |rules| &mut rules.not_applied_when)
    }

    /// Sets the meaning of a status from 300 to 599 whose body passes no test. A 2xx can be in
    /// doubt or need review; [`Meaning::NotReached`] is for 521, 523, 525, 526 and 530.
    ///
    /// ```
    /// use sqlite_outbox::{Http, Meaning};
    ///
    /// let http = Http::new()
    ///     .endpoint("https://api.example.com/orders/{entity_id}")
    ///     .on_status(409, Meaning::Applied);
    /// ```
    pub fn on_status(self, status: u16, meaning: Meaning) -> Self {
        self.set(|http| http.rules.set_status(status, meaning))
    }

    fn test(
        self,
        test: Predicate,
        field: &str,
        place: impl FnOnce(&mut Rules) -> &mut Option<Predicate>,
    ) -> Self {
        self.set(|http| {
            *place(&mut http.rules) = Some(test.checked(field)?);
            Ok(())
        })
    }
}
