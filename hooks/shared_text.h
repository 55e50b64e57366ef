/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shared_text.h — short texts in the shared state that are read while another process may rewrite them. A text is an array of 64-bit
 * atomics, zero padded, always terminated. A reader may see a mixture of two texts, never anything outside them; who needs to know
 * brackets it with a word of his own: writer clears the word, puts, sets it; reader reads it before and after. Stores are
 * releases and loads acquires, so that a reader who saw a byte of the new text also sees the cleared word.
 */
#ifndef MOOR_SHARED_TEXT_H
#define MOOR_SHARED_TEXT_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* len without the bytes of an unfinished last UTF-8 character: who cuts a text must leave one that Python and JSON still take. */
static inline size_t moor_text_whole(const char *text, size_t len)
{
    size_t back = 0;
    while (back < 3 && back < len && ((unsigned char)text[len - 1 - back] & 0xC0) == 0x80)
        back++;
    unsigned char lead = back < len ? (unsigned char)text[len - 1 - back] : 0;
    size_t follow = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : lead >= 0xC0 ? 1 : 0;
    return follow > back ? len - 1 - back : len;
}

/* Writes at most words * 8 - 1 bytes of text, cut between characters, and the terminator; words behind it keep what they held. */
static inline void moor_text_put(_Atomic uint64_t *to, size_t words, const char *text, size_t len)
{
    if (len > words * 8 - 1)
        len = words * 8 - 1;
    len = moor_text_whole(text, len);
    for (size_t i = 0;; i++) {
        uint64_t word = 0;
        size_t left = len - i * 8;
        memcpy(&word, text + i * 8, left < 8 ? left : 8);
        atomic_store_explicit(&to[i], word, memory_order_release);
        if (left < 8)
            return;
    }
}

/* Copies to a buffer of `size` > 0 bytes, cut to it and terminated. */
static inline void moor_text_get(const _Atomic uint64_t *from, size_t words, char *out, size_t size)
{
    size_t at = 0;
    for (size_t i = 0; i < words && at + 1 < size; i++) {
        char bytes[8];
        uint64_t word = atomic_load_explicit((_Atomic uint64_t *)&from[i], memory_order_acquire);
        memcpy(bytes, &word, 8);
        for (size_t k = 0; k < 8 && at + 1 < size; k++) {
            if (!bytes[k]) {
                out[at] = 0;
                return;
            }
            out[at++] = bytes[k];
        }
    }
    out[at] = 0;
}

#define MOOR_TEXT_WORDS(array) (sizeof(array) / sizeof((array)[0]))
#define MOOR_TEXT_PUT(array, text, len) moor_text_put(array, MOOR_TEXT_WORDS(array), text, len)
#define MOOR_TEXT_GET(array, out, size) moor_text_get(array, MOOR_TEXT_WORDS(array), out, size)

#endif
