//! Copies message bodies, as fast as the receiver takes them and not a byte past their end.

use std::io;

use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncWrite, AsyncWriteExt};

use super::head::{BodyFraming, HeadError, read_line};

/// Maximum length of a chunk-size line, and of all trailer lines together.
const MAX_SIZE_LINE_BYTES: u64 = 1024;
const MAX_TRAILER_BYTES: u64 = 16 * 1024;

/// Copies one body. Chunks are rewritten without extensions and trailers, so that the next parser
/// sees exactly the chunks that we saw.
pub async fn copy_body(
    reader: &mut (impl AsyncBufRead + Unpin),
    writer: &mut (impl AsyncWrite + Unpin),
    framing: BodyFraming,
) -> io::Result<()> {
    match framing {
        BodyFraming::Empty => Ok(()),
        BodyFraming::Length(length) => copy_exactly(reader, writer, length).await,
        BodyFraming::Chunked => copy_chunks(reader, writer).await,
        BodyFraming::UntilClosed => tokio::io::copy_buf(reader, writer).await.map(|_| ()),
    }
}

async fn copy_exactly(
    reader: &mut (impl AsyncBufRead + Unpin),
    writer: &mut (impl AsyncWrite + Unpin),
    mut remaining: u64,
) -> io::Result<()> {
    while remaining > 0 {
        let buffer = reader.fill_buf().await?;
        if buffer.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let length = buffer.len().min(usize::try_from(remaining).unwrap_or(usize::MAX));
        writer.write_all(&buffer[..length]).await?;
        reader.consume(length);
        remaining -= length as u64;
    }
    Ok(())
}

async fn copy_chunks(
    reader: &mut (impl AsyncBufRead + Unpin),
    writer: &mut (impl AsyncWrite + Unpin),
) -> io::Result<()> {
    loop {
        let line = read_line(reader, &mut MAX_SIZE_LINE_BYTES.clone()).await.map_err(body_error)?;
        let size = parse_chunk_size(&line).ok_or_else(|| body_error(HeadError::Malformed))?;
        if size == 0 {
            break;
        }
        writer.write_all(format!("{size:x}\r\n").as_bytes()).await?;
        copy_exactly(reader, writer, size).await?;
        if read_line(reader, &mut 2).await.map_err(body_error)? != b"\r\n" {
            return Err(body_error(HeadError::Malformed));
        }
        writer.write_all(b"\r\n").await?;
    }
    let mut remaining = MAX_TRAILER_BYTES;
    while read_line(reader, &mut remaining).await.map_err(body_error)? != b"\r\n" {}
    writer.write_all(b"0\r\n\r\n").await
}

/// Parses hex digits, followed by the end of the line or an extension.
fn parse_chunk_size(line: &[u8]) -> Option<u64> {
    let line = line.strip_suffix(b"\r\n")?;
    let digits = line.split(|byte| *byte == b';').next()?.trim_ascii_end();
    let is_valid = (1..=15).contains(&digits.len()) && digits.iter().all(u8::is_ascii_hexdigit);
    is_valid.then(|| u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok())?
}

fn body_error(error: HeadError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the body is {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What comes out, and what is left unread.
    async fn copy(text: &str, framing: BodyFraming) -> io::Result<(String, String)> {
        let (mut from, mut to) = (text.as_bytes(), Vec::new());
        copy_body(&mut from, &mut to, framing).await?;
        Ok((String::from_utf8(to).unwrap(), String::from_utf8(from.to_vec()).unwrap()))
    }

    #[tokio::test]
    async fn a_body_ends_where_it_says() {
        for (text, framing, body, rest) in [
            ("GET", BodyFraming::Empty, "", "GET"),
            ("12345GET", BodyFraming::Length(5), "12345", "GET"),
            ("5\r\n12345\r\n0\r\n\r\nGET", BodyFraming::Chunked, "5\r\n12345\r\n0\r\n\r\n", "GET"),
            (
                "A;x=\"y\"\r\n1234567890\r\n000\r\nX: y\r\n\r\nGET",
                BodyFraming::Chunked,
                "a\r\n1234567890\r\n0\r\n\r\n",
                "GET",
            ),
            ("anything", BodyFraming::UntilClosed, "anything", ""),
        ] {
            assert_eq!(
                copy(text, framing).await.unwrap(),
                (body.to_owned(), rest.to_owned()),
                "{text:?}"
            );
        }
    }

    #[tokio::test]
    async fn a_body_that_does_not_end_well_is_an_error() {
        assert!(copy("1234", BodyFraming::Length(5)).await.is_err());
        for text in [
            "",
            "5\r\n1234",
            "5\r\n12345",
            "5\r\n12345\r\n",
            "5\r\n123456\r\n0\r\n\r\n",
            "5\n12345\r\n0\r\n\r\n",
            "5\r\n12345\n0\r\n\r\n",
            "5\r\n12345\r\n0\r\n",
            "5\r\n12345\r\n0\r\n\n",
            "\r\n",
            "x\r\n",
            "+5\r\n12345\r\n0\r\n\r\n",
            "0x5\r\n12345\r\n0\r\n\r\n",
            " 5\r\n12345\r\n0\r\n\r\n",
            "-1\r\n",
            "ffffffffffffffff\r\n",
            "10000000000000005\r\n12345\r\n0\r\n\r\n",
        ] {
            assert!(copy(text, BodyFraming::Chunked).await.is_err(), "{text:?}");
        }
        let endless = format!("1{}\r\n", ";".repeat(2000));
        assert!(copy(&endless, BodyFraming::Chunked).await.is_err());
    }
}
