/* SPDX-License-Identifier: Apache-2.0 */
/*
 * report.h — the shared state of an instance as one JSON document, from which every text of status.c is made. The
 * document's layout is what `moor status --json` prints. Called by status.c; a pure function of a mapped state.
 */
#ifndef MOOR_REPORT_H
#define MOOR_REPORT_H

#include <jansson.h>

#include "../abi/state.h"
#include "../allocator/error.h"
#include "../client/client.h"

/* alive: [MOOR_MAX_PROCESSES]. NULL when memory ran out. */
json_t *moor_report(const moor_located *where, moor_state *state, const uint8_t *alive);

#endif
