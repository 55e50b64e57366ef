/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reply_store — fuzz_reply's stores: sockets in two instances' directories ("one" has store 0, "two" has 0 and 1), and who answers there
 * from the fuzz input. Single-threaded: the target is linked with --wrap=poll, and whenever the client waits, the stores take a turn.
 */
#ifndef MOOR_FUZZ_REPLY_STORE_H
#define MOOR_FUZZ_REPLY_STORE_H

#include "reply_input.h"

void reply_store_make(void);          /* once: directories, locks, sockets; sets $MOOR_DIR */
void reply_store_begin(void);         /* of an input */
void reply_store_end(void);           /* hangs up on all clients */
const char *reply_store_dir(int two); /* of the instance */

#endif
