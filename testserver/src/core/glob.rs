//! Patterns of names: `*`, `?`, `[a-z]`, `[^a]` and `\`.

/// Tells whether the whole text fits the pattern.
pub(crate) fn fits(pattern: &[u8], text: &[u8]) -> bool {
    let Some((sign, rest)) = pattern.split_first() else { return text.is_empty() };
    match (sign, text.split_first()) {
        (b'*', _) => (0..=text.len()).any(|skipped| fits(rest, &text[skipped..])),
        (_, None) => false,
        (b'?', Some((_, text))) => fits(rest, text),
        (b'[', Some((byte, text))) => {
            let (contains, rest) = class(rest, *byte);
            contains && fits(rest, text)
        }
        (b'\\', Some((byte, text))) if !rest.is_empty() => {
            rest[0] == *byte && fits(&rest[1..], text)
        }
        (sign, Some((byte, text))) => sign == byte && fits(rest, text),
    }
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
        for (pattern, text) in
            [("*", ""), ("a*c", "abbc"), ("h[^e]llo", "hallo"), ("[a-c]", "b"), ("\\*", "*")]
        {
            assert!(fits(pattern.as_bytes(), text.as_bytes()), "{pattern} {text}");
        }
        for (pattern, text) in [("a", "ab"), ("?", ""), ("h[^e]llo", "hello"), ("\\*", "a")] {
            assert!(!fits(pattern.as_bytes(), text.as_bytes()), "{pattern} {text}");
        }
    }
}
