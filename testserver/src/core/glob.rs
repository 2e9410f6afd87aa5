//! Patterns of names: `*`, `?`, `[a-z]`, `[^a]` and `\`.

/// Tells whether the whole text fits the pattern.
pub(crate) fn fits(pattern: &[u8], text: &[u8]) -> bool {
    let (mut rest, mut at) = (pattern, 0);
    // The pattern behind the last `*`, and where the text that it leaves begins. A longer text for
    // an earlier `*` cannot help.
    let mut star = None;
    while at < text.len() {
        if let Some(behind) = rest.strip_prefix(b"*") {
            star = Some((behind, at));
            rest = behind;
            continue;
        }
        match one(rest, text[at]) {
            Some(behind) => (rest, at) = (behind, at + 1),
            None => {
                let Some((behind, from)) = star else { return false };
                star = Some((behind, from + 1));
                (rest, at) = (behind, from + 1);
            }
        }
    }
    rest.iter().all(|sign| *sign == b'*')
}

/// Returns what follows the first sign of a pattern, if the sign fits the byte.
fn one(pattern: &[u8], byte: u8) -> Option<&[u8]> {
    let (sign, rest) = pattern.split_first()?;
    let (fits, rest) = match (sign, rest) {
        (b'?', _) => (true, rest),
        (b'[', _) => class(rest, byte),
        (b'\\', [escaped, rest @ ..]) => (*escaped == byte, rest),
        _ => (*sign == byte, rest),
    };
    fits.then_some(rest)
}

/// Reads a class behind its `[`; tells whether it has the byte, and returns what follows it.
fn class(mut pattern: &[u8], byte: u8) -> (bool, &[u8]) {
    let negated = pattern.first() == Some(&b'^');
    pattern = &pattern[usize::from(negated)..];
    let mut found = false;
    loop {
        match pattern {
            [] => break,
            [b']', rest @ ..] => {
                pattern = rest;
                break;
            }
            [b'\\', escaped, rest @ ..] => {
                found |= *escaped == byte;
                pattern = rest;
            }
            [from, b'-', to, rest @ ..] => {
                found |= (*from.min(to)..=*from.max(to)).contains(&byte);
                pattern = rest;
            }
            [one, rest @ ..] => {
                found |= *one == byte;
                pattern = rest;
            }
        }
    }
    (found != negated, pattern)
}

#[cfg(test)]
mod tests {
    use super::fits;

    #[test]
    fn patterns_fit_whole_names() {
        for (pattern, text) in [
            ("*", ""),
            ("a*c", "abbc"),
            ("a*b*c", "abcbc"),
            ("a**", "a"),
            ("h[^e]llo", "hallo"),
            ("[a-c]", "b"),
            ("\\*", "*"),
        ] {
            assert!(fits(pattern.as_bytes(), text.as_bytes()), "{pattern} {text}");
        }
        for (pattern, text) in [("a", "ab"), ("?", ""), ("h[^e]llo", "hello"), ("\\*", "a")] {
            assert!(!fits(pattern.as_bytes(), text.as_bytes()), "{pattern} {text}");
        }
    }
}
