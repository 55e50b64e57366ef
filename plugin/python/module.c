/* SPDX-License-Identifier: Apache-2.0 */
/* The Python module moor._moor. */
#include "module.h"

#include "consumer.h"
#include "hooks/engine/capture.h"
#include "loading.h"

#include <stddef.h>

/* Parts, in order.  Each adds its types and functions to the module: 0, or -1 with an error. */
static int (*const parts[])(PyObject *module) = {
    moor_py_loading_init,
    moor_py_capture_init,
    moor_py_consumer_init,
};

static const moor_api *api;

const moor_api *moor_py_api(void)
{
    return api;
}

static int refuse_subinterpreter(void)
{
    if (PyInterpreterState_GetID(PyInterpreterState_Get()) == 0)
        return 0;
    PyErr_SetString(PyExc_ImportError, "moor: subinterpreters are not supported; import moor in the main interpreter");
    return -1;
}

static int find_api(void)
{
    uint32_t have = 0;
    api = moor_get_api(MOOR_API_VERSION, &have);
    if (api)
        return 0;
    PyErr_Format(PyExc_ImportError, "moor: this module needs version %u of the C ABI, libmoor.so.1 has up to %u",
                 (unsigned)MOOR_API_VERSION, (unsigned)have);
    return -1;
}

static int module_exec(PyObject *module)
{
    if (refuse_subinterpreter() < 0 || find_api() < 0)
        return -1;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        if (parts[i](module) < 0)
            return -1;
    }
    return 0;
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, (void *)module_exec},
    {0, NULL},
};

static struct PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT,
    .m_name = "moor._moor",
    .m_doc = "The C part of moor.",
    .m_slots = module_slots,
};

PyMODINIT_FUNC PyInit__moor(void)
{
    return PyModuleDef_Init(&module_def);
}
