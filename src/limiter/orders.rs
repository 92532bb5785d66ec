//! Orders about one key: to block it for a time, to lift a block, to clear what was counted.

use super::{
    handle::Limiter,
    setup::{Setup, Way},
};
use crate::{
    error::{Error, ErrorKind},
    key::Key,
    sync::{Answer, Order},
    time::Micros,
};
use std::time::Duration;

/// The longest block, 100 years: times in the protocol stay exact.
const BLOCK_MAX: Duration = Duration::from_secs(36_525 * 86_400);

impl Limiter {
    /// Refuses every request for this key for so long, whatever the limit says; a longer or shorter block replaces it.
    ///
    /// # Promise
    /// In this process from the moment that this returns. In other instances, which ask the same authority: within one
    /// cadence where the key is asked for all the time; else with their next question, and tokens that they were lent
    /// before may be spent until their lease ends (10 s when not set). Nothing is given or lent meanwhile. A `Local` rule
    /// blocks in this process alone.
    ///
    /// # Errors
    /// [`Config`](ErrorKind::Config) for a span of zero or above 100 years; for a rule with a
    /// [`plain_key`](crate::Rule::plain_key), which has no place for a block; and for a key for which nothing is counted,
    /// since its rule is `unlimited` or denies all, or it is on the allow or the deny list. [`UnknownRule`](ErrorKind::UnknownRule)
    /// where the rule was removed; [`BadKey`](ErrorKind::BadKey); and where the authority does not answer within the rule's deadline the kind of that failure: then the key may be blocked or not,
    /// and the same call again is safe. A `Local` rule: [`Saturated`](ErrorKind::Saturated) when as many keys are
    /// blocked as the gate may know.
    ///
    /// # Cancel safety
    /// A dropped call may have been done or not.
    pub async fn block(&self, key: impl AsRef<[u8]>, span: Duration) -> Result<(), Error> {
        if span.is_zero() || span > BLOCK_MAX {
            let what = format!("rule {:?}: block: above zero and up to 100 years, not {span:?}", self.name());
            return Err(Error::new(ErrorKind::Config, what));
        }
        self.order(key.as_ref(), Order::Block(span.into())).await
    }

    /// Lifts a block; nothing else changes. Nothing happens where there is none.
    ///
    /// # Promise
    /// In this process from the moment that this returns. In other instances within a second and a round trip, for which they remember a
    /// denial.
    ///
    /// # Errors
    /// As [`block`](Limiter::block).
    pub async fn unblock(&self, key: impl AsRef<[u8]>) -> Result<(), Error> {
        self.order(key.as_ref(), Order::Block(Micros::ZERO)).await
    }

    /// Forgets what was counted for this key, and any block: it is as if nobody had asked before. What is lent at the moment
    /// stays lent, and counts.
    ///
    /// # Promise
    /// In this process from the moment that this returns. In other instances within a second and a round trip, for which they remember a
    /// denial. The bound of the rule begins anew with each clear. On a [plain key](crate::Rule::plain_key) what other
    /// programs counted in the present window goes, too.
    ///
    /// # Errors
    /// As [`block`](Limiter::block).
    pub async fn clear(&self, key: impl AsRef<[u8]>) -> Result<(), Error> {
        self.order(key.as_ref(), Order::Clear).await
    }
}

impl Limiter {
    /// For whoever answers for the key now.
    async fn order(&self, key: &[u8], order: Order) -> Result<(), Error> {
        let present = self.answers(key);
        present.order(key, order).await
    }
}

impl Setup {
    async fn order(&self, bytes: &[u8], order: Order) -> Result<(), Error> {
        let name = self.terms.name;
        let fault = |kind, what: &str| Err(Error::new(kind, format!("rule {name:?}: {what}")));
        let Some(key) = Key::new(bytes, self.long) else {
            return fault(ErrorKind::BadKey, "the key is above 1 KiB, and long keys are refused");
        };
        match &self.way {
            Way::Local { governed, .. } => {
                match order {
                    Order::Block(span) => governed.block(self.rule, &key, span)?,
                    Order::Clear => governed.clear(self.rule, &key),
                }
                Ok(())
            }
            Way::Shared { driver, .. } => {
                if let Some(template) = self.terms.plain {
                    return self.order_count(driver, template, &key, order).await;
                }
                let deadline = self.clock.now().plus(self.terms.deadline);
                match driver.order(self.rule, (key.bytes().into(), key.is_digest()), order, deadline).await {
                    Answer::Done => Ok(()),
                    Answer::Failed(kind) => fault(kind, &format!("{order}: the store did not take it: {kind:?}")),
                    _ => fault(ErrorKind::Deadline, &format!("{order}: the store did not answer in time")),
                }
            }
            Way::Constant(_) => {
                let what = format!(
                    "{order}: nothing is counted for this key: its rule, or a list, lets it pass or refuses it"
                );
                fault(ErrorKind::Config, &what)
            }
            Way::Lifted => fault(ErrorKind::UnknownRule, &format!("{order}: the rule was removed")),
        }
    }
}
