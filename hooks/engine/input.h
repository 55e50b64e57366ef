/* SPDX-License-Identifier: Apache-2.0 */
/*
 * input.h — no image, video or audio is lost in silence (SEMANTICS 9.1): what a caller passed is counted, and so is what arrived.
 *
 * Who calls it: sglang_input.c, lmdeploy_input.c, one request at a time, with the GIL held. It owns nothing.
 */
#ifndef MOOR_HOOKS_ENGINE_INPUT_H
#define MOOR_HOOKS_ENGINE_INPUT_H

#include "runtime.h"

typedef enum moor_input_kind { MOOR_INPUT_IMAGE, MOOR_INPUT_VIDEO, MOOR_INPUT_AUDIO, MOOR_INPUT_KINDS } moor_input_kind;

typedef struct moor_input {
    char field[MOOR_INPUT_KINDS][32]; /* as the caller named it */
    Py_ssize_t passed[MOOR_INPUT_KINDS], all_passed;
    Py_ssize_t arrived[MOOR_INPUT_KINDS], all_arrived; /* an item that does not say its modality is of no kind */
} moor_input;

/* The kind of a field or modality by its name in any case ("image_data", "VIDEO"); -1: none. */
int moor_input_kind_of(const char *name);
void moor_input_passed(moor_input *input, moor_input_kind kind, const char *field, Py_ssize_t n);
/* Items of the processor's output (a list, or None): each has a `modality`, an attribute or a key. Leaves no error. */
void moor_input_arrived(moor_input *input, PyObject *items);
/* MOOR_JP_OK; or MOOR_JP_RAISE with a ValueError that names the field of what is lost. */
int moor_input_check(const moor_input *input, const char *engine);

#endif
