/* words.h: touched rows of words, gathered.
 *
 * Purpose: a word as key and up to seven values of at most a word: most tables are such, and most of
 * what the general way costs is telling what a row has. Here no branch asks for it.
 *
 * Thread safety: as sealed.h says.
 *
 * Complexity: O(rows that the epoch touched).
 */
#ifndef PST_WORDS_H
#define PST_WORDS_H

#include "snapshot/entries.h"

int pst_is_of_words(const pst_sealed *s, const pst_table *t);
/* The entries of the rows that the open epoch touched. PST_LIMIT. REQUIRES: they are of words, and
 * there is room for an entry of each. */
pst_status pst_gather_words(pst_sealed *s, const pst_table *t);

#endif
