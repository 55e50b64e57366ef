# SPDX-License-Identifier: Apache-2.0
"""moorlab: what the engine tests and the demo share.

It makes models, runs engines, talks to them, and asks an independent oracle
(transformers' own routers) what the right answer is.  Nothing here imports
`moor`: the harness must be able to run the same flow without it.
"""
