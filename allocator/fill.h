/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fill.h — rows that come from elsewhere than a step, and rows that go again: fill and truncate (SEMANTICS 1.7, 1.8, 1.10, 1.19).
 *
 * The functions are in store.h; called by hooks/record.c and the store server, any thread. New rows lie in blocks of their own, checked before
 * the record changes; what was accepted before is never replaced.
 */
#ifndef MOOR_FILL_H
#define MOOR_FILL_H

#include "records.h"

#endif
