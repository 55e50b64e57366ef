# SPDX-License-Identifier: Apache-2.0
"""An engine's class shapes, for the tests of the installer."""
