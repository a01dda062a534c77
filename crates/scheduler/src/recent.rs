//! What most answers need of a request, beside the seats of its rank: a step of many thousand rows would else look up each
//! request, and each request's text, somewhere in memory.

use crate::RequestId;
use crate::request::Request;

/// Tokens that are kept here before they join the request's others.
const TOKENS: usize = 20;

/// Stop tokens that are kept here.
const STOPS: usize = 8;

/// Who a request is, when it stops, and the newest tokens of its text.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub(crate) struct Recent {
    pub(crate) id: RequestId,
    /// Tokens that it read from the prefix cache when it first started.
    pub(crate) cached_tokens: u32,
    /// Stop tokens; past [`STOPS`] those of the request are looked at.
    stop_count: u8,
    count: u8,
    stop_token_ids: [u32; STOPS],
    tokens: [u32; TOKENS],
}

impl Recent {
    /// An empty seat's.
    pub(crate) const NOTHING: Self = Self {
        id: RequestId(0),
        cached_tokens: 0,
        stop_count: 0,
        count: 0,
        stop_token_ids: [0; STOPS],
        tokens: [0; TOKENS],
    };

    pub(crate) fn of(request: &Request) -> Self {
        let stops = &request.stop_token_ids;
        let mut stop_token_ids = [0; STOPS];
        stop_token_ids.iter_mut().zip(stops).for_each(|(to, token)| *to = *token);
        Self {
            id: request.id,
            cached_tokens: request.cached_tokens.unwrap_or(0),
            stop_count: if stops.len() > STOPS { u8::MAX } else { stops.len() as u8 },
            stop_token_ids,
            ..Self::NOTHING
        }
    }

    /// How many tokens the request does not have yet.
    pub(crate) const fn count(&self) -> u32 {
        self.count as u32
    }

    /// Adds a token of the request. False when there is no room left: then they are to be settled first.
    #[inline]
    pub(crate) fn push(&mut self, token: u32) -> bool {
        let count = self.count;
        let Some(place) = self.tokens.get_mut(usize::from(count)) else { return false };
        *place = token;
        self.count = count + 1;
        true
    }

    /// Whether a token ends the request; nothing when it has so many of them that it is to be asked itself.
    #[inline]
    #[expect(clippy::manual_contains, reason = "they are few: this loop is shorter than the search of a long slice")]
    pub(crate) fn stops_at(&self, token: u32) -> Option<bool> {
        let stops = self.stop_token_ids.get(..usize::from(self.stop_count))?;
        Some(stops.iter().any(|stop| *stop == token))
    }

    /// Gives the request all its tokens.
    #[inline(never)]
    pub(crate) fn settle(&mut self, request: &mut Request) {
        request.tokens.extend_from_slice(&self.tokens[..self.count as usize]);
        self.count = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_two_cache_lines() {
        assert_eq!(size_of::<Recent>(), 128);
    }
}
