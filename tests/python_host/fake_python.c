/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake_python: exports what the preload's constructor looks for, and prints how many audit hooks were added.
 * $FAKE_VERSION is what Py_GetVersion says; $FAKE_INITIALIZED=1: the interpreter runs already.
 */
#include <stdio.h>
#include <stdlib.h>

#define EXPORT __attribute__((visibility("default")))
int PySys_AddAuditHook(int (*hook)(const char *, void *, void *), void *user);
int Py_IsInitialized(void);
const char *Py_GetVersion(void);

static int hooks;

EXPORT int PySys_AddAuditHook(int (*hook)(const char *, void *, void *), void *user)
{
    (void)user;
    hooks += hook != NULL;
    return 0;
}

EXPORT int Py_IsInitialized(void)
{
    const char *value = getenv("FAKE_INITIALIZED");
    return value && *value == '1';
}

EXPORT const char *Py_GetVersion(void)
{
    const char *value = getenv("FAKE_VERSION");
    return value ? value : "3.13.0 (main)";
}

int main(void)
{
    (void)printf("%d\n", hooks);
    return 0;
}
