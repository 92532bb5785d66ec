//! Mistakes that a book could make. Tests and the simulator plant them to see that they are noticed.

/// One rule of the book that is not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Refills to the burst, whatever is lent.
    NoCap,
    /// Drops all ended leases before it refills.
    DropFirst,
    /// After the sender last spent, counts it with its hold: less than a lost reply granted.
    HoldCap,
    /// Windows: what is lent does not count as gone.
    ForgetOutstanding,
    /// Windows: what an ended lease had counts as never spent.
    ForgetEnded,
    /// Windows: what is reported counts from when it was lent, which is before it was spent.
    CountEarly,
    /// Fixed windows: says that a lease may go on after its window, so that old tokens are spent in the new one.
    LeaseOutlivesWindow,
    /// Windows: what was spent and what was refunded since the last report are only counted against each other.
    NetRefunds,
    /// Windows: a refund of what has left already, or of another window, is taken from what is there.
    RefundStale,
    /// Logs: a refund is taken from the newest entries.
    RefundNewest,
}

impl Fault {
    /// All of them.
    #[cfg(any(test, feature = "sim"))]
    #[allow(dead_code)] // for whoever wants to see them all caught
    pub(crate) const ALL: [Fault; 10] = [
        Fault::NoCap,
        Fault::DropFirst,
        Fault::HoldCap,
        Fault::ForgetOutstanding,
        Fault::ForgetEnded,
        Fault::CountEarly,
        Fault::LeaseOutlivesWindow,
        Fault::NetRefunds,
        Fault::RefundStale,
        Fault::RefundNewest,
    ];
}
