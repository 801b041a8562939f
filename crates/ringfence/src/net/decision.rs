//! Decisions on requests, for the audit log, for a result's `denials`, and for the client inside
//! the sandbox.

use std::net::IpAddr;

/// Decision on one request. Every request gets one, even one that could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProxyDecision {
    pub allowed: bool,
    /// Host in a form that is safe to show: bounded, printable ASCII. Empty if the request did not
    /// get as far as naming one.
    pub host: String,
    pub port: u16,
    /// `connect`, `http` or `socks5`
    pub via: &'static str,
    /// `not_allowed`, `denied`, `port`, `private_address`, `bad_name`, `resolve_failed`,
    /// `bad_request` or `limit` if it was refused; `unreachable` if it was allowed but the upstream
    /// did not answer.
    pub reason: Option<&'static str>,
    /// Address that was dialled, if any.
    pub address: Option<IpAddr>,
}

/// Reason for refusing or failing a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalReason {
    NotAllowed,
    /// The request named an address that is not listed.
    AddressNotAllowed,
    Denied,
    Port,
    PrivateAddress,
    BadName,
    ResolveFailed,
    BadRequest,
    HeadTooLarge,
    HeadTooSlow,
    Limit,
    Unreachable,
    ConnectionRefused,
}

/// A reason with its names on the wire and in the audit log.
struct ReasonRow {
    reason: RefusalReason,
    audit_name: &'static str,
    http_status: &'static str,
    socks_reply: u8,
}

impl ReasonRow {
    const fn new(
        reason: RefusalReason,
        audit_name: &'static str,
        http_status: &'static str,
        socks_reply: u8,
    ) -> ReasonRow {
        ReasonRow { reason, audit_name, http_status, socks_reply }
    }
}

/// Each reason once.
const REASON_ROWS: &[ReasonRow] = &[
    ReasonRow::new(RefusalReason::NotAllowed, "not_allowed", "403 Forbidden", 2),
    ReasonRow::new(RefusalReason::AddressNotAllowed, "not_allowed", "403 Forbidden", 2),
    ReasonRow::new(RefusalReason::Denied, "denied", "403 Forbidden", 2),
    ReasonRow::new(RefusalReason::Port, "port", "403 Forbidden", 2),
    ReasonRow::new(RefusalReason::PrivateAddress, "private_address", "403 Forbidden", 2),
    ReasonRow::new(RefusalReason::BadName, "bad_name", "403 Forbidden", 2),
    ReasonRow::new(RefusalReason::ResolveFailed, "resolve_failed", "502 Bad Gateway", 4),
    ReasonRow::new(RefusalReason::BadRequest, "bad_request", "400 Bad Request", 1),
    ReasonRow::new(
        RefusalReason::HeadTooLarge,
        "bad_request",
        "431 Request Header Fields Too Large",
        1,
    ),
    ReasonRow::new(RefusalReason::HeadTooSlow, "bad_request", "408 Request Timeout", 1),
    ReasonRow::new(RefusalReason::Limit, "limit", "503 Service Unavailable", 1),
    ReasonRow::new(RefusalReason::Unreachable, "unreachable", "502 Bad Gateway", 4),
    ReasonRow::new(RefusalReason::ConnectionRefused, "unreachable", "502 Bad Gateway", 5),
];

impl RefusalReason {
    fn table_row(self) -> &'static ReasonRow {
        // The table covers every reason (a unit test checks it), so the first row is never a silent
        // fallback.
        REASON_ROWS.iter().find(|row| row.reason == self).unwrap_or(&REASON_ROWS[0])
    }

    /// Returns the name used in the audit log and in `denials`.
    pub fn name(self) -> &'static str {
        self.table_row().audit_name
    }

    /// Returns the HTTP status line of the refusal.
    pub fn http_status(self) -> &'static str {
        self.table_row().http_status
    }

    /// Returns the SOCKS5 reply code.
    pub fn socks_reply(self) -> u8 {
        self.table_row().socks_reply
    }

    /// Returns whether the proxy allowed the request and only the upstream failed.
    pub fn is_upstream_failure(self) -> bool {
        matches!(self, RefusalReason::Unreachable | RefusalReason::ConnectionRefused)
    }
}

/// Request that ends before anything was sent upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProxyRefusal {
    pub reason: RefusalReason,
    pub host: String,
    pub port: u16,
    pub address: Option<IpAddr>,
}

impl ProxyRefusal {
    /// Creates a refusal that names the host and port.
    pub fn new(reason: RefusalReason, host: &str, port: u16) -> ProxyRefusal {
        ProxyRefusal { reason, host: host.to_owned(), port, address: None }
    }

    /// Creates the refusal of a request that could not be read, so there is no host to name.
    pub fn from_unreadable(reason: RefusalReason) -> ProxyRefusal {
        ProxyRefusal::new(reason, "", 0)
    }

    /// Returns the decision to record.
    pub fn to_decision(&self, via: &'static str) -> ProxyDecision {
        let allowed = self.reason.is_upstream_failure();
        let ProxyRefusal { host, port, address, .. } = self.clone();
        ProxyDecision { allowed, host, port, via, reason: Some(self.reason.name()), address }
    }

    /// Returns one line for the program inside and the model behind it: what happened, and which
    /// config key would change it.
    pub fn message(&self) -> String {
        let ProxyRefusal { host, port, .. } = self;
        match self.reason {
            RefusalReason::NotAllowed => {
                format!("{host} is not in `allow_domains` of this tool; ask the operator to add \"{host}\" there.")
            }
            RefusalReason::AddressNotAllowed => format!(
                "an address can be reached only if `allow_addresses` lists it; use a name, or ask the operator to add \
                 \"{host}:{port}\" there."
            ),
            RefusalReason::Denied => {
                format!("{host}:{port} is in `deny_domains` of this tool, which takes precedence over `allow_domains`.")
            }
            RefusalReason::Port => format!(
                "{host} is allowed, but not on port {port}; ask the operator to add \"{host}:{port}\" to `allow_domains`."
            ),
            RefusalReason::PrivateAddress => format!(
                "{host} has only private, local or reserved addresses; ask the operator to list its address with \
                 port {port} in `allow_addresses`."
            ),
            RefusalReason::BadName => "the host is not a plain DNS name or address; write it as one.".to_owned(),
            RefusalReason::ResolveFailed => format!("{host} was not found in DNS; check the name or try again."),
            RefusalReason::BadRequest => {
                "the request was not understood; send CONNECT host:port, GET http://host/…, or SOCKS5.".to_owned()
            }
            RefusalReason::HeadTooLarge => "the request head is larger than 16 KiB; send fewer or shorter headers.".to_owned(),
            RefusalReason::HeadTooSlow => "the request head did not arrive within 10 s; send it without delay.".to_owned(),
            RefusalReason::Limit => "this run has too many open connections; close some and try again.".to_owned(),
            RefusalReason::Unreachable => format!("{host}:{port} is allowed, but did not answer; try again later."),
            RefusalReason::ConnectionRefused => {
                format!("{host}:{port} is allowed, but refused the connection; check the port.")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_its_row_and_says_one_line() {
        for row in REASON_ROWS {
            assert_eq!(row.reason.name(), row.audit_name);
            assert_eq!(row.reason.http_status(), row.http_status);
            let message = ProxyRefusal::new(row.reason, "example.com", 22).message();
            assert!(message.ends_with('.') && !message.contains('\n'), "{message}");
        }
        // One more than the last discriminant: all variants are in the table.
        assert_eq!(REASON_ROWS.len(), RefusalReason::ConnectionRefused as usize + 1);
    }
}
