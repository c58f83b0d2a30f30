"""Comparison of predictions that were computed in different batches."""


def assert_close(case, received, expected):
    """Compares JSON values: numbers up to rounding, all others exactly."""
    if isinstance(expected, dict):
        case.assertEqual(list(received), list(expected))
        for key, value in expected.items():
            assert_close(case, received[key], value)
    elif isinstance(expected, list):
        case.assertLen(received, len(expected))
        for one, other in zip(received, expected, strict=True):
            assert_close(case, one, other)
    elif isinstance(expected, float):
        case.assertAllClose(received, expected, rtol=1e-5, atol=1e-6)
    else:
        case.assertEqual(received, expected)
