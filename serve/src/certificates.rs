//! Certificates of our own: authorities, what they issue, and how one follows the other. Pure.
//!
//! Who trusts us holds the [`bundle`](AuthoritySet::bundle_pem); who serves has a leaf of the
//! [`issuer`](AuthoritySet::issuer). Rotation must never let a leaf appear before the bundle that vouches for it
//! has spread, nor take an authority away while a leaf of it lives. Both follow from ages alone, so that any
//! number of replicas agree without talking: a new authority is *trusted* at once and *issues* only after
//! [`Policy::overlap_seconds`]; an old one is dropped only when its successor has issued for a leaf's whole life.
//!
//! The overlap is no proof that the bundle has spread: whoever spreads it must have worked once in that day. The leader
//! compares the webhooks' bundle every few seconds (`ca_bundle` of the controller), so what it takes for a leaf that the
//! API server does not trust is a whole day without any leader, and that day the one after an authority was made, once
//! in eight months. GPU pods are refused then (their owners try again) until a leader has come back and repaired
//! the bundle, seconds later; without one none of them could have been admitted either.
//!
//! Time is the wall clock (certificates know no other), in seconds since the Unix epoch; the margins are days, so
//! a clock that jumps by hours changes nothing. Where it leaves a set without any authority that is valid (a cluster that slept
//! for a year, a clock that was years ahead when the authority was made), a new one issues at once: nobody trusts the others
//! any more, so there is nothing to wait for. Nothing is dropped for its date alone, and nothing for one that is older by its
//! date or by its place (the order in which they were made), or two replicas whose clocks differ would go on undoing each
//! other's work.

use std::{sync::Arc, time::Duration};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, date_time_ymd,
};
use rustls::{
    pki_types::{CertificateDer, UnixTime, pem::PemObject},
    server::WebPkiClientVerifier,
};
use serde::{Deserialize, Serialize};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::tls::{self, CertificateAndKey};

const HOUR_SECONDS: i64 = 60 * 60;
const DAY_SECONDS: i64 = 24 * HOUR_SECONDS;
/// Certificates are valid from this long before they are made, for peers whose clocks are behind.
const BACKDATED_SECONDS: i64 = HOUR_SECONDS;

/// How long authorities and leaves live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Validity of an authority.
    pub authority_seconds: i64,
    /// Validity of what it issues to servers; renewed after two thirds of it.
    pub leaf_seconds: i64,
    /// For how long a new authority is trusted before it issues. `None`: authorities are not replaced while they are valid.
    pub overlap_seconds: Option<i64>,
}

impl Policy {
    /// For clients whose trust is kept up to date: an authority lives a year and is replaced after eight months.
    pub const ROTATED: Self = Self {
        authority_seconds: 365 * DAY_SECONDS,
        leaf_seconds: 30 * DAY_SECONDS,
        overlap_seconds: Some(DAY_SECONDS),
    };
    /// For clients that read their trust once, at their start: one authority for ten years, and another only when it has
    /// expired.
    pub const PINNED: Self = Self {
        authority_seconds: 3650 * DAY_SECONDS,
        leaf_seconds: 30 * DAY_SECONDS,
        overlap_seconds: None,
    };
}

/// An authority: a self-signed certificate and its key (ECDSA P-256).
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Authority {
    /// Its common name.
    common_name: String,
    /// When it was made.
    issued_at: i64,
    /// The certificate.
    certificate_pem: String,
    /// The key.
    key_pem: String,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Keys do not belong into logs.
        formatter
            .debug_struct("Authority")
            .field("common_name", &self.common_name)
            .field("issued_at", &self.issued_at)
            .finish_non_exhaustive()
    }
}

/// What a certificate is issued for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A server, by the DNS names and IP addresses that its clients use.
    Server(Vec<String>),
    /// A client, by its common name.
    Client(String),
}

/// Why a certificate could not be made.
#[derive(Debug, thiserror::Error)]
#[error("certificate for {subject}: {source}")]
pub struct IssueError {
    subject: String,
    source: rcgen::Error,
}

impl Authority {
    /// Makes an authority. The time is part of its common name: no two of them share one.
    pub fn generate(name: &str, policy: &Policy, now: i64) -> Result<Self, IssueError> {
        let common_name = format!("{name} {now}");
        let failed = |source| IssueError {
            subject: common_name.clone(),
            source,
        };
        let key = KeyPair::generate().map_err(failed)?;
        let mut params = authority_params(&common_name);
        set_validity(&mut params, now, policy.authority_seconds);
        let certificate_pem = params.self_signed(&key).map_err(failed)?.pem();
        Ok(Self {
            issued_at: now,
            certificate_pem,
            key_pem: key.serialize_pem(),
            common_name,
        })
    }

    /// Issues a certificate, with a key of its own, valid for `seconds`.
    pub fn issue(
        &self,
        subject: &Subject,
        now: i64,
        seconds: i64,
    ) -> Result<CertificateAndKey, IssueError> {
        let failed = |source| IssueError {
            subject: format!("{subject:?}"),
            source,
        };
        let mut params = match subject {
            Subject::Server(names) => {
                let mut params = CertificateParams::new(names.clone()).map_err(failed)?;
                params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
                params.distinguished_name = common_name(names.first().map_or("", String::as_str));
                params
            }
            Subject::Client(name) => {
                let mut params = CertificateParams::default();
                params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
                params.distinguished_name = common_name(name);
                params
            }
        };
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        set_validity(&mut params, now, seconds);
        let authority_key = KeyPair::from_pem(&self.key_pem).map_err(failed)?;
        let issuer = Issuer::new(authority_params(&self.common_name), authority_key);
        let key = KeyPair::generate().map_err(failed)?;
        let certificate = params.signed_by(&key, &issuer).map_err(failed)?;
        Ok(CertificateAndKey {
            certificate_pem: certificate.pem(),
            key_pem: key.serialize_pem(),
        })
    }

    /// Whether certificate and key can be read and belong together, and what it issues can be trusted by them; else what is wrong.
    pub fn check(&self) -> Result<(), String> {
        check_pair(&self.certificate_pem, &self.key_pem)?;
        let unreadable = |error: String| format!("the certificate: {error}");
        let der = CertificateDer::from_pem_slice(self.certificate_pem.as_bytes())
            .map_err(|error| unreadable(error.to_string()))?;
        let certificate = parsed(&der).map_err(unreadable)?;
        // By its name what it issues is told to be its own.
        let (subject, named) = (
            certificate.subject().to_string(),
            format!("CN={}", self.common_name),
        );
        if subject != named {
            return Err(format!(
                "the certificate is of {subject}, and not of {named}"
            ));
        }
        if !certificate.is_ca() {
            return Err("the certificate is none of an authority".to_owned());
        }
        Ok(())
    }

    /// Whether it has issued this client certificate (PEM). Whether that is valid now is another question.
    fn has_issued(&self, client_pem: &str) -> bool {
        let verified = || {
            let client = CertificateDer::from_pem_slice(client_pem.as_bytes()).ok()?;
            let at = u64::try_from(Validity::of(client_pem)?.not_before).ok()?;
            let at = UnixTime::since_unix_epoch(Duration::from_secs(at));
            let roots = tls::root_store(&self.certificate_pem, "the authority").ok()?;
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            let verifier = verifier.build().ok()?;
            verifier.verify_client_cert(&client, &[], at).ok()
        };
        verified().is_some()
    }

    /// Seconds until it expires; negative afterwards.
    pub fn remaining_seconds(&self, policy: &Policy, now: i64) -> i64 {
        policy
            .authority_seconds
            .saturating_sub(self.age_seconds(now))
    }

    fn age_seconds(&self, now: i64) -> i64 {
        now.saturating_sub(self.issued_at)
    }

    /// Whether clients whose clock shows `now` accept it.
    fn is_valid(&self, policy: &Policy, now: i64) -> bool {
        self.age_seconds(now) >= -BACKDATED_SECONDS && self.remaining_seconds(policy, now) > 0
    }
}

/// From when until when a certificate is valid, in seconds since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// The first second.
    pub not_before: i64,
    /// The last second.
    pub not_after: i64,
}

impl Validity {
    /// Of the first certificate of a PEM. `None` if it cannot be read.
    pub fn of(pem: &str) -> Option<Self> {
        let der = CertificateDer::from_pem_slice(pem.as_bytes()).ok()?;
        let validity = &parsed(&der).ok()?.tbs_certificate.validity;
        Some(Self {
            not_before: validity.not_before.timestamp(),
            not_after: validity.not_after.timestamp(),
        })
    }

    /// Whether it is valid at `now`.
    pub fn contains(&self, now: i64) -> bool {
        (self.not_before..=self.not_after).contains(&now)
    }
}

/// Whether a certificate and a key (PEM) can be read and belong together; else what is wrong.
pub fn check_pair(certificate_pem: &str, key_pem: &str) -> Result<(), String> {
    let key = KeyPair::from_pem(key_pem).map_err(|error| format!("the key: {error}"))?;
    let unreadable = |error: String| format!("the certificate: {error}");
    let der = CertificateDer::from_pem_slice(certificate_pem.as_bytes())
        .map_err(|error| unreadable(error.to_string()))?;
    let certificate = parsed(&der).map_err(unreadable)?;
    if certificate.public_key().subject_public_key.data != key.public_key_raw() {
        return Err("the key is not that of the certificate".to_owned());
    }
    Ok(())
}

fn parsed<'a>(der: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, String> {
    match X509Certificate::from_der(der) {
        Ok((_, certificate)) => Ok(certificate),
        Err(error) => Err(error.to_string()),
    }
}

/// The authorities of one purpose: usually one, two while one replaces the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthoritySet {
    /// In the order in which they were made, which that of their dates is not where clocks differ; never empty.
    authorities: Vec<Authority>,
}

impl AuthoritySet {
    /// A set of one new authority, which issues at once.
    pub fn generate(name: &str, policy: &Policy, now: i64) -> Result<Self, IssueError> {
        let authority = Authority::generate(name, policy, now)?;
        Ok(Self {
            authorities: vec![authority],
        })
    }

    /// A set as it was stored. `None` if it is empty.
    pub fn from_stored(authorities: Vec<Authority>) -> Option<Self> {
        (!authorities.is_empty()).then_some(Self { authorities })
    }

    /// The authorities, in the order in which they were made.
    pub fn authorities(&self) -> &[Authority] {
        &self.authorities
    }

    /// What clients are to trust: all certificates, one PEM after the other.
    pub fn bundle_pem(&self) -> String {
        self.authorities
            .iter()
            .map(|authority| authority.certificate_pem.as_str())
            .collect()
    }

    /// Whether one of them has issued this client certificate (PEM), so that servers of theirs let it in.
    pub fn vouches_for(&self, client_pem: &str) -> bool {
        let mut all = self.authorities.iter();
        all.any(|authority| authority.has_issued(client_pem))
    }

    /// Who issues now, of those that are valid: the newest that has been trusted for the overlap, else the oldest.
    pub fn issuer(&self, policy: &Policy, now: i64) -> &Authority {
        let overlap = policy.overlap_seconds.unwrap_or(0);
        let valid = || {
            let all = self.authorities.iter();
            all.filter(|authority| authority.is_valid(policy, now))
        };
        let trusted = valid().filter(|authority| authority.age_seconds(now) >= overlap);
        trusted
            .max_by_key(|authority| authority.issued_at)
            .or_else(|| valid().min_by_key(|authority| authority.issued_at))
            .unwrap_or(&self.authorities[0])
    }

    /// The set as it should be now, if that is another one: with a successor once the newest has lived two
    /// thirds of its life (without an overlap: its whole life), without those of which no leaf can live any more.
    pub fn advanced(
        &self,
        name: &str,
        policy: &Policy,
        now: i64,
    ) -> Result<Option<Self>, IssueError> {
        let mut authorities = self.authorities.clone();
        if let Some(overlap) = policy.overlap_seconds {
            // What is older than an authority that has issued for a leaf's whole life has no live leaf. Older by its date and by its
            // place: one that was made after this one by somebody whose clock is behind ours has leaves that we know nothing of.
            let all = &self.authorities;
            let mut position = 0;
            authorities.retain(|authority| {
                position += 1;
                let is_spent = all[position..].iter().any(|later| {
                    later.issued_at > authority.issued_at
                        && later.age_seconds(now) >= overlap.saturating_add(policy.leaf_seconds)
                });
                !is_spent
            });
        }
        let young_seconds = match policy.overlap_seconds {
            Some(_) => policy.authority_seconds / 3 * 2,
            None => policy.authority_seconds,
        };
        let one_is_young = authorities.iter().any(|authority| {
            authority.is_valid(policy, now) && authority.age_seconds(now) < young_seconds
        });
        if !one_is_young {
            authorities.push(Authority::generate(name, policy, now)?);
        }
        let advanced = Self { authorities };
        Ok((advanced != *self).then_some(advanced))
    }
}

fn authority_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = common_name(name);
    // It signs leaves, and no further authority.
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

fn common_name(name: &str) -> DistinguishedName {
    let mut distinguished_name = DistinguishedName::new();
    distinguished_name.push(DnType::CommonName, name);
    distinguished_name
}

fn set_validity(params: &mut CertificateParams, now: i64, seconds: i64) {
    let epoch = date_time_ymd(1970, 1, 1);
    let at = |time: i64| epoch + Duration::from_secs(u64::try_from(time).unwrap_or(0));
    params.not_before = at(now.saturating_sub(BACKDATED_SECONDS));
    params.not_after = at(now.saturating_add(seconds));
}

#[cfg(test)]
mod tests {
    use rustls::{
        client::{WebPkiServerVerifier, danger::ServerCertVerifier},
        pki_types::ServerName,
    };

    use super::*;

    const NOW: i64 = 1_800_000_000;

    fn verify(
        bundle_pem: &str,
        pair: &CertificateAndKey,
        name: &str,
        at: i64,
    ) -> Result<(), rustls::Error> {
        tls::install_provider();
        let roots = tls::root_store(bundle_pem, "bundle").unwrap();
        let verifier = WebPkiServerVerifier::builder(roots.into()).build().unwrap();
        let leaf = CertificateDer::from_pem_slice(pair.certificate_pem.as_bytes()).unwrap();
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let at = UnixTime::since_unix_epoch(Duration::from_secs(at.unsigned_abs()));
        verifier
            .verify_server_cert(&leaf, &[], &name, &[], at)
            .map(|_| ())
    }

    #[test]
    fn a_leaf_is_trusted_for_its_names_and_its_life_only() {
        let set = AuthoritySet::generate("webhook", &Policy::ROTATED, NOW).unwrap();
        let names = vec!["webhook.muster.svc".to_owned(), "127.0.0.1".to_owned()];
        let pair = set
            .issuer(&Policy::ROTATED, NOW)
            .issue(&Subject::Server(names), NOW, 1_000)
            .unwrap();
        let bundle = set.bundle_pem();
        for (name, at, trusted) in [
            ("webhook.muster.svc", NOW, true),
            ("127.0.0.1", NOW, true),
            ("webhook.muster.svc", NOW - 1_800, true),
            ("other.muster.svc", NOW, false),
            ("127.0.0.2", NOW, false),
            ("webhook.muster.svc", NOW + 1_001, false),
            ("webhook.muster.svc", NOW - 2 * HOUR_SECONDS, false),
        ] {
            assert_eq!(
                verify(&bundle, &pair, name, at).is_ok(),
                trusted,
                "{name} at {at}"
            );
        }
        let stranger = AuthoritySet::generate("webhook", &Policy::ROTATED, NOW).unwrap();
        assert!(
            verify(&stranger.bundle_pem(), &pair, "127.0.0.1", NOW).is_err(),
            "an authority of the same name is not the same authority"
        );
    }

    #[test]
    fn a_client_certificate_does_not_serve() {
        let set = AuthoritySet::generate("extender", &Policy::PINNED, NOW).unwrap();
        let subject = Subject::Client("scheduler".to_owned());
        let pair = set
            .issuer(&Policy::PINNED, NOW)
            .issue(&subject, NOW, 1_000)
            .unwrap();
        assert!(verify(&set.bundle_pem(), &pair, "scheduler", NOW).is_err());
    }

    #[test]
    fn rotation_never_shows_a_leaf_that_clients_do_not_trust_yet_or_no_longer() {
        let policy = Policy::ROTATED;
        let overlap = policy.overlap_seconds.unwrap();
        let mut set = AuthoritySet::generate("webhook", &policy, NOW).unwrap();
        let mut history = Vec::new();
        for day in 0..(6 * 365) {
            let now = NOW + day * DAY_SECONDS;
            if let Some(advanced) = set.advanced("webhook", &policy, now).unwrap() {
                set = advanced;
            }
            history.push((
                now,
                set.issuer(&policy, now).clone(),
                set.authorities().to_vec(),
            ));
        }
        let mut issuers: Vec<&str> = history
            .iter()
            .map(|(_, issuer, _)| issuer.common_name.as_str())
            .collect();
        issuers.dedup();
        assert!(issuers.len() >= 8, "{} issuers in six years", issuers.len());
        for (at, issuer, _) in &history {
            assert!(
                at + policy.leaf_seconds <= issuer.issued_at + policy.authority_seconds,
                "a leaf outlives its authority"
            );
            // What clients may hold from the overlap before the leaf is shown until the end of its life.
            let window = at - overlap + 1..=at + policy.leaf_seconds;
            for (seen_at, _, bundle) in &history {
                if window.contains(seen_at) {
                    assert!(
                        bundle.contains(issuer),
                        "leaf of {issuer:?} at {at}, bundle of {seen_at}"
                    );
                }
            }
        }
        assert!(
            history.iter().all(|(_, _, bundle)| bundle.len() <= 2),
            "spent authorities go"
        );
    }

    #[test]
    fn pinned_authorities_are_replaced_only_when_they_have_expired() {
        let policy = Policy::PINNED;
        let set = AuthoritySet::generate("extender", &policy, NOW).unwrap();
        let last = NOW + policy.authority_seconds - 1;
        assert_eq!(set.advanced("extender", &policy, last).unwrap(), None);
        assert_eq!(set.issuer(&policy, last), &set.authorities()[0]);
        let late = last + 1;
        let healed = set.advanced("extender", &policy, late).unwrap().unwrap();
        assert_eq!(healed.authorities().len(), 2);
        assert_eq!(healed.issuer(&policy, late), &healed.authorities()[1]);
        assert_eq!(healed.advanced("extender", &policy, late).unwrap(), None);
    }

    #[test]
    fn where_no_authority_is_valid_a_new_one_issues_at_once_and_its_leaf_is_trusted() {
        let policy = Policy::ROTATED;
        let name = "webhook.muster.svc";
        let subject = Subject::Server(vec![name.to_owned()]);
        for (what, now) in [
            (
                "a cluster that slept for a year",
                NOW + policy.authority_seconds,
            ),
            ("and for ten", NOW + 10 * policy.authority_seconds),
            ("a clock that was a day ahead", NOW - DAY_SECONDS),
            ("and ten years", NOW - 10 * policy.authority_seconds),
        ] {
            let set = AuthoritySet::generate("webhook", &policy, NOW).unwrap();
            let old = &set.authorities()[0];
            let healed = set.advanced("webhook", &policy, now).unwrap();
            let healed = healed.unwrap_or_else(|| panic!("{what}: nothing was made"));
            let issuer = healed.issuer(&policy, now);
            assert_ne!(issuer, old, "{what}");
            let leaf = issuer.issue(&subject, now, policy.leaf_seconds).unwrap();
            verify(&healed.bundle_pem(), &leaf, name, now)
                .unwrap_or_else(|error| panic!("{what}: {error}"));
            let settled = healed.advanced("webhook", &policy, now).unwrap();
            assert_eq!(settled, None, "{what}");
        }
    }

    #[test]
    fn a_replica_whose_clock_is_off_by_hours_undoes_nothing() {
        let policy = Policy::ROTATED;
        let old = NOW + policy.authority_seconds / 3 * 2;
        let set = AuthoritySet::generate("webhook", &policy, NOW).unwrap();
        let set = set.advanced("webhook", &policy, old).unwrap().unwrap();
        for clock in [
            old - DAY_SECONDS,
            old - HOUR_SECONDS,
            old,
            old + DAY_SECONDS,
        ] {
            assert_eq!(set.advanced("webhook", &policy, clock).unwrap(), None);
        }
        let subject = Subject::Server(vec!["localhost".to_owned()]);
        // Who is an hour behind still accepts what is issued now, and not who is further behind.
        let fresh = Authority::generate("webhook", &policy, NOW).unwrap();
        let leaf = fresh.issue(&subject, NOW, policy.leaf_seconds).unwrap();
        for (clock, accepted) in [
            (NOW - BACKDATED_SECONDS, true),
            (NOW - BACKDATED_SECONDS - 1, false),
        ] {
            let verified = verify(&fresh.certificate_pem, &leaf, "localhost", clock);
            assert_eq!(verified.is_ok(), accepted, "{clock}");
            assert_eq!(fresh.is_valid(&policy, clock), accepted, "{clock}");
            let validity = Validity::of(&leaf.certificate_pem).unwrap();
            assert_eq!(validity.contains(clock), accepted, "{clock}");
        }
    }

    #[test]
    fn replicas_whose_clocks_differ_by_far_do_not_go_on_undoing_each_others_work() {
        let policy = Policy::ROTATED;
        for skew_days in [-400, -40, -32, -1, 0, 1, 32, 40, 400] {
            let skew = skew_days * DAY_SECONDS;
            let mut set = AuthoritySet::generate("webhook", &policy, NOW).unwrap();
            let mut changes = 0;
            for day in 0..(3 * 365) {
                let now = NOW + day * DAY_SECONDS;
                // Both look at it again after the other one.
                for clock in [now, now + skew, now, now + skew] {
                    if let Some(advanced) = set.advanced("webhook", &policy, clock).unwrap() {
                        set = advanced;
                        changes += 1;
                    }
                }
                let count = set.authorities().len();
                assert!(count <= 3, "{skew_days} days: {count} authorities");
            }
            // Each makes its successors and drops what is spent.
            assert!(changes < 20, "{skew_days} days: {changes} changes");
        }
    }

    #[test]
    fn an_authority_that_cannot_issue_is_told_by_what_is_wrong_with_it() {
        let good = Authority::generate("webhook", &Policy::ROTATED, NOW).unwrap();
        assert_eq!(good.check(), Ok(()));
        let other = Authority::generate("webhook", &Policy::ROTATED, NOW).unwrap();
        // What such an authority issues would be trusted by nobody.
        let elsewhere = Authority::generate("extender", &Policy::ROTATED, NOW).unwrap();
        let subject = Subject::Client(good.common_name.clone());
        let leaf = good.issue(&subject, NOW, 1_000).unwrap();
        let with = |key: &str, certificate: &str| Authority {
            key_pem: key.to_owned(),
            certificate_pem: certificate.to_owned(),
            ..good.clone()
        };
        for (authority, told) in [
            (with("none", &good.certificate_pem), "the key: "),
            (with(&good.key_pem, ""), "the certificate: "),
            (with(&good.key_pem, &good.key_pem), "the certificate: "),
            (
                with(&other.key_pem, &good.certificate_pem),
                "the key is not that of the certificate",
            ),
            (
                with(&elsewhere.key_pem, &elsewhere.certificate_pem),
                "the certificate is of CN=extender 1800000000, and not of CN=webhook 1800000000",
            ),
            (
                with(&leaf.key_pem, &leaf.certificate_pem),
                "the certificate is none of an authority",
            ),
        ] {
            let error = authority.check().unwrap_err();
            assert!(error.contains(told), "{error}");
            assert!(!error.contains("PRIVATE"), "{error}");
        }
        assert_eq!(Validity::of("none"), None);
    }

    #[test]
    fn a_set_vouches_for_clients_of_its_own_authorities_however_old_and_for_nothing_else() {
        let set = AuthoritySet::generate("extender", &Policy::PINNED, NOW).unwrap();
        let late = NOW + Policy::PINNED.authority_seconds;
        let both = set.advanced("extender", &Policy::PINNED, late).unwrap();
        let both = both.unwrap();
        let stranger = AuthoritySet::generate("extender", &Policy::PINNED, NOW).unwrap();
        let issue = |set: &AuthoritySet, subject: &Subject| {
            let pair = set.authorities()[0].issue(subject, NOW, 1_000).unwrap();
            pair.certificate_pem
        };
        let client = Subject::Client("scheduler".to_owned());
        let server = Subject::Server(vec!["localhost".to_owned()]);
        for (pem, vouches) in [
            (issue(&set, &client), true),
            (issue(&stranger, &client), false),
            (issue(&set, &server), false),
            (set.bundle_pem(), false),
            ("garbage".to_owned(), false),
            (String::new(), false),
        ] {
            assert_eq!(set.vouches_for(&pem), vouches, "{pem}");
            assert_eq!(both.vouches_for(&pem), vouches, "{pem}");
        }
    }

    #[test]
    fn keys_stay_out_of_logs() {
        let set = AuthoritySet::generate("webhook", &Policy::ROTATED, NOW).unwrap();
        let pair = set.authorities()[0]
            .issue(&Subject::Client("any".to_owned()), NOW, 1)
            .unwrap();
        assert!(!format!("{set:?}{pair:?}").contains("PRIVATE KEY"));
    }
}
