//! Signed documents, and what somebody does to them.

use crate::document::{Document, Object, Release};
use crate::envelope::{Envelope, MOST_BYTES};
use crate::keyring::Keyring;
use crate::refusal::Refusal;
use crate::sign::Signer;
use crate::testing::{Key, release};

/// The refusal of an object under a key's keyring.
fn refusal(key: &Key, object: &str) -> Refusal {
    key.keyring().verify(object).unwrap_err()
}

#[test]
fn a_signed_release_is_read_as_it_was_written() {
    let key = Key::new();
    let mut written = release(7);
    written.select.insert("role".into(), "web".into());
    written.objects.push(Object::new("limits/a.toml", "text"));
    let object = key.release(&written);
    let keyring = key.keyring();
    let (text, id) = keyring.verify(&object).unwrap();
    assert_eq!(id, key.parsed().id());
    assert_eq!(Document::parse(text), Ok(Document::Release(written)));
}

#[test]
fn the_program_minisign_verifies_an_object() {
    // What `head -n 4` and `tail -n +5` separate, verified by the library of the program's author.
    let key = Key::new();
    let object = key.release(&release(1));
    let end = object.match_indices('\n').nth(3).unwrap().0 + 1;
    let signature = minisign::SignatureBox::from_string(&object[..end]).unwrap();
    let public = key.public.strip_prefix("ed25519:").unwrap();
    let public = minisign::PublicKey::from_base64(public).unwrap();
    let text = std::io::Cursor::new(&object.as_bytes()[end..]);
    minisign::verify(&public, &signature, text, true, false, false).unwrap();
}

#[test]
fn an_unsigned_object_is_refused() {
    let key = Key::new();
    let text = Document::Release(release(1)).to_text().unwrap();
    for object in ["", "\n\n\n\n", text.as_str(), "[[limit]]\nname = \"a\"\n"] {
        assert_eq!(refusal(&key, object), Refusal::Unsigned);
    }
}

#[test]
fn an_object_of_another_key_is_refused_with_the_keys_id() {
    let (key, other) = (Key::new(), Key::new());
    let object = other.release(&release(1));
    let id = other.parsed().id();
    assert_eq!(refusal(&key, &object), Refusal::UnknownKey(id));
    let message = refusal(&key, &object).to_string();
    assert!(
        message.contains(&format!("key {id} does not count")),
        "{message}"
    );
    assert!(message.contains("public_keys"), "{message}");
}

#[test]
fn every_truncation_is_refused() {
    let key = Key::new();
    let object = key.release(&release(1));
    let document = object.match_indices('\n').nth(3).unwrap().0 + 1;
    for end in 0..object.len() {
        let refused = refusal(&key, &object[..end]);
        if end >= document {
            let expected = object.len() - document;
            let found = end - document;
            assert_eq!(refused, Refusal::Truncated { found, expected });
        }
    }
}

#[test]
fn every_changed_byte_is_refused() {
    let key = Key::new();
    let object = key.release(&release(1));
    let first_line = object.find('\n').unwrap();
    let keyring = key.keyring();
    for place in 0..object.len() {
        let mut bytes = object.clone().into_bytes();
        bytes[place] = if bytes[place] == b'x' { b'y' } else { b'x' };
        let changed = String::from_utf8(bytes).unwrap();
        let is_comment = (19..first_line).contains(&place);
        // The first line is the one that minisign does not sign.
        assert_eq!(keyring.verify(&changed).is_ok(), is_comment, "byte {place}");
    }
    let longer = format!("{object}\n");
    assert!(matches!(refusal(&key, &longer), Refusal::Changed(_)));
}

#[test]
fn a_huge_object_is_refused_before_its_signature_is_verified() {
    let object = "x".repeat(MOST_BYTES + 1);
    let refused = Envelope::open(&object).err().unwrap();
    assert_eq!(refused, Refusal::TooLarge(MOST_BYTES + 1));
}

#[test]
fn a_signed_document_with_a_fault_is_refused() {
    let key = Key::new();
    type Fault = (&'static str, fn(&mut Release));
    let faults: [Fault; 7] = [
        ("invalid stream \"../web\"", |release| {
            release.stream = "../web".into();
        }),
        ("invalid publisher \"\"", |release| {
            release.publisher.clear();
        }),
        ("version 7 does not follow version 7", |release| {
            release.previous = 7;
        }),
        ("bake is 9s", |release| {
            release.bake = std::time::Duration::from_secs(9);
        }),
        ("it has no object", |release| {
            release.objects.clear();
        }),
        ("invalid object \"limits/../../etc.toml\"", |release| {
            release.objects[0].name = "limits/../../etc.toml".into();
        }),
        ("duplicate object \"rules.toml\"", |release| {
            release.objects.push(release.objects[0].clone());
        }),
    ];
    for (reason, fault) in faults {
        let mut faulty = release(7);
        fault(&mut faulty);
        let object = key.release(&faulty);
        let keyring = key.keyring();
        let (text, _) = keyring.verify(&object).unwrap();
        let refused = Document::parse(text).unwrap_err().to_string();
        assert!(refused.contains(reason), "{refused}");
    }
    let unknown = "kind = \"release\"\nstream = \"web\"\nversion = 1\nnew = true\n";
    let refused = Document::parse(unknown).unwrap_err().to_string();
    assert!(refused.contains("new"), "{refused}");
}

#[test]
fn an_encrypted_key_file_signs_with_its_password_only() {
    let (mut public, mut secret) = (Vec::new(), Vec::new());
    let password = || Some("correct".to_owned());
    let write = minisign::KeyPair::generate_and_write_encrypted_keypair;
    write(&mut public, &mut secret, None, password()).unwrap();
    let (public, secret) = (
        String::from_utf8(public),
        String::from_utf8(secret).unwrap(),
    );
    let signer = Signer::new(&secret, password()).unwrap();
    let object = signer.sign(&Document::Release(release(1))).unwrap();
    let public = public.unwrap();
    let key = public.lines().nth(1).unwrap().parse().unwrap();
    assert!(Keyring::new(vec![key]).verify(&object).is_ok());
    for (text, password) in [
        (secret.as_str(), None),
        (secret.as_str(), Some("wrong".to_owned())),
        ("no key", password()),
    ] {
        let error = Signer::new(text, password).err().unwrap().to_string();
        assert!(error.contains("minisign -G"), "{error}");
    }
}
