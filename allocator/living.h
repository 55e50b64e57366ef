/* SPDX-License-Identifier: Apache-2.0 */
/*
 * living.h — which instances are in a base directory, and which of them live. Called by plugin/instance.c (to remove dead ones), client/
 * (to find one, and to say what there is) and hooks/holds.c (whose server sees a hold). Changes nothing, owns nothing, no lock.
 */
#ifndef MOOR_LIVING_H
#define MOOR_LIVING_H

/* 1 when <base>/name is an instance whose server lives. */
int moor_living(int base_fd, const char *name);
/* Calls each() for everything there that looks like an instance, dead ones too: the base may be somebody's $XDG_RUNTIME_DIR. each() may
 * remove it. */
void moor_living_each(int base_fd, void (*each)(void *user, int base_fd, const char *name), void *user);

#endif
