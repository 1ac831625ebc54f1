//! Errors of a request, and what is answered in place of its response. Hot path.

/// Answer that a header filter puts in place of a response: 412 or 416.
#[derive(Debug)]
pub struct Refusal {
    /// Status that is answered instead.
    pub status: u16,
    /// `Content-Range` of that answer, if any.
    pub content_range: Vec<u8>,
}

/// Errors of a request.
#[derive(Debug, Default)]
pub struct Errors {
    /// Status with which a head was rejected before it was understood; 0: it was understood.
    pub rejected: u16,
    /// First status that an `error_page` answers for; 0: none.
    pub original: u16,
    /// Status of the page in place of its own (`error_page CODE =RESPONSE`).
    pub overwrite: Option<u16>,
    /// Answer of a header filter in place of the response.
    pub refusal: Option<Box<Refusal>>,
}

impl Errors {
    /// Forgets the errors of the request before.
    #[inline]
    pub fn clear(&mut self) {
        // Every field is named, so that a new field cannot be left out.
        let Errors { rejected, original, overwrite, refusal } = self;
        (*rejected, *original, *overwrite, *refusal) = (0, 0, None, None);
    }

    /// Returns `true` if the response is the one of the location, not of an error.
    #[inline]
    pub fn is_none(&self) -> bool {
        self.rejected == 0 && self.original == 0 && self.overwrite.is_none()
    }

    /// Returns `true` if the response is the page of an error.
    #[inline]
    pub fn has_page(&self) -> bool {
        self.original != 0
    }

    /// Notes that an `error_page` answers for a status. The first one counts.
    pub fn begin_page(&mut self, status: u16) {
        if self.original == 0 {
            self.original = status;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_status_of_pages_counts() {
        let mut errors = Errors::default();
        assert!(errors.is_none() && !errors.has_page());
        errors.begin_page(404);
        errors.begin_page(500);
        assert!(errors.original == 404 && errors.has_page() && !errors.is_none());
        errors.clear();
        errors.overwrite = Some(200);
        assert!(!errors.is_none() && !errors.has_page());
    }
}
